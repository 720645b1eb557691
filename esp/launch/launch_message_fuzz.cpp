// What launchers and ranks send each other, from any bytes: an IoError, or a message that reads back as it is written.
#include <cstddef>
#include <cstdint>
#include <string>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/launch/control.h"
#include "esp/launch/lobby.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::launch;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto word = word_of(text)) ESP_CHECK(text_of(word_of(text_of(*word)).value()) == text_of(*word));
  try {
    const std::string next = text_of(next_round_of(text));
    ESP_CHECK(text_of(next_round_of(next)) == next);
  } catch (const esp::IoError&) {
  }
  try {
    const std::string epoch = text_of(epoch_of(text));
    ESP_CHECK(text_of(epoch_of(epoch)) == epoch);
  } catch (const esp::IoError&) {
  }
  return 0;
}
