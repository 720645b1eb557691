// Fuzz target: a text is either rejected with an error, or parsed to a schedule that round-trips.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/comm/schedule_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  if (size > 65536) return 0;
  try {
    comm::ScheduleFile file =
        comm::parse_schedule(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz input");
    ESP_CHECK(comm::parse_schedule(comm::write_schedule(file), "written") == file);
  } catch (const IoError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
