// Fuzzes the reader of tokenizer.json. Any text is rejected, or gives a tokenizer that encodes and decodes with bounded
// output sizes. The same text is also used as its tokenizer_config.json.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/tokenizer/post_processor.h"
#include "esp/data/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  if (size > 65536) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    auto tokenizer = data::read_tokenizer_json(text, "fuzz input");
    data::apply_tokenizer_config(*tokenizer, parse_json(text, "fuzz input"), true);
    std::vector<int32_t> ids;
    tokenizer->encode("Hello  w\u00F6rld's \u4E2D <|endoftext|>\xFF\n", ids);
    tokenizer->encode(text, ids);
    // The expansion limit allows 64 bytes per input byte plus 1 KiB, and a space mark of 3 bytes before each word.
    ESP_CHECK(ids.size() <= 4 * (64 * (size + 64) + 2048), "{} ids of {} bytes", ids.size(), size);
    tokenizer->decode(ids);
    ids = data::encode_with_template(*tokenizer, "text");
    ESP_CHECK(ids.size() <= 4 * (64 * 4 + 1024) + 512, "{} ids of four bytes", ids.size());
    tokenizer->decode(ids);
  } catch (const IoError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
