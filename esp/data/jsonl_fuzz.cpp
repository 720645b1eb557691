// Fuzzes the JSON lines reader with plain and compressed bytes. Any bytes are read as lines or rejected with IoError.
// Reading can stop and resume after every line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/jsonl.h"

namespace {

constexpr uint64_t kMaxBytes = 1 << 20;  // limit of decompressed bytes in this test

esp::data::LineReader lines_of(std::string_view bytes, esp::data::Compression compression) {
  return {esp::data::make_byte_stream(bytes, compression, "fuzz input", kMaxBytes), "fuzz input", 4096};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::data;
  if (size == 0 || size > 65536) return 0;
  const auto compression = static_cast<Compression>(data[0] % 3);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  struct LineEnd {
    uint64_t offset, number;
    std::string text;
  };
  std::vector<LineEnd> lines_read;
  try {
    LineReader lines = lines_of(bytes, compression);
    JsonLineParser json({"text", "label"});
    for (std::string_view line; lines.next(line);) {
      lines_read.push_back({lines.offset(), lines.number(), std::string(line)});
      try {
        json.parse(line, lines.location());
        (void)json.text(0, lines.location());
      } catch (const esp::IoError&) {
      }
    }
  } catch (const esp::IoError&) {
    return 0;
  }
  for (size_t i = 0; i + 1 < lines_read.size() && i < 3; ++i) {
    LineReader again = lines_of(bytes, compression);
    again.seek(lines_read[i].offset, lines_read[i].number + 1);
    std::string_view line;
    ESP_CHECK(again.next(line) && line == lines_read[i + 1].text && again.offset() == lines_read[i + 1].offset);
  }
  return 0;
}
