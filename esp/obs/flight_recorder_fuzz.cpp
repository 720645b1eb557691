// Reads arbitrary bytes as a flight recorder: the result is an error or a log, never a crash.
#include <cstdint>
#include <cstring>
#include <string>

#include "esp/base/error.h"
#include "esp/obs/flight_log.h"

#include <nlohmann/json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::obs;
  // Most inputs get the magic word, so that the fuzzer reaches the code after it.
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > 8 && (data[0] & 1)) std::memcpy(bytes.data(), &kFlightMagic, sizeof kFlightMagic);
  try {
    FlightLog log = parse_flight_log(bytes, "fuzz input");
    (void)to_json(log).dump();
    const FlightLog both[] = {log, log};
    (void)merged_timeline(both);
  } catch (const esp::IoError&) {
  }
  return 0;
}
