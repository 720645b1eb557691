// Any bytes are lines of JSON or an IoError, plain or compressed, and reading may stop and go on after every line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/jsonl.h"

namespace {

constexpr uint64_t kMaxBytes = 1 << 20;  // of what a few compressed bytes may become here

esp::data::LineReader lines_of(std::string_view bytes, esp::data::Compression compression) {
  return {esp::data::make_byte_stream(bytes, compression, "fuzz input", kMaxBytes), "fuzz input", 4096};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::data;
  if (size == 0 || size > 65536) return 0;
  const auto compression = static_cast<Compression>(data[0] % 3);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  struct Place {
    uint64_t offset, number;
    std::string text;
  };
  std::vector<Place> places;
  try {
    LineReader lines = lines_of(bytes, compression);
    JsonLine json({"text", "label"});
    for (std::string_view line; lines.next(line);) {
      places.push_back({lines.offset(), lines.number(), std::string(line)});
      try {
        json.parse(line, lines.where());
        (void)json.text(0, lines.where());
      } catch (const esp::IoError&) {
      }
    }
  } catch (const esp::IoError&) {
    return 0;
  }
  for (size_t i = 0; i + 1 < places.size() && i < 3; ++i) {
    LineReader again = lines_of(bytes, compression);
    again.seek(places[i].offset, places[i].number + 1);
    std::string_view line;
    ESP_CHECK(again.next(line) && line == places[i + 1].text && again.offset() == places[i + 1].offset);
  }
  return 0;
}
