// Parses launcher messages from arbitrary bytes. The parser throws an IoError, or the message stays equal after it is
// encoded and parsed again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/launch/control.h"
#include "esp/launch/elastic_rendezvous.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::launch;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto word = parse_rank_message(text))
    ESP_CHECK(encode(parse_rank_message(encode(*word)).value()) == encode(*word));
  try {
    const std::string next = encode(parse_next_round(text));
    ESP_CHECK(encode(parse_next_round(next)) == next);
  } catch (const esp::IoError&) {
  }
  try {
    const std::string epoch = encode(parse_epoch(text));
    ESP_CHECK(encode(parse_epoch(epoch)) == epoch);
  } catch (const esp::IoError&) {
  }
  return 0;
}
