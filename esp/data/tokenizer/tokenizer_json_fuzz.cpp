// Any text is refused with an error or is a tokenizer that encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "esp/base/error.h"
#include "esp/data/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  if (size > 65536) return 0;
  try {
    auto tokenizer =
        data::read_tokenizer_json(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz input");
    std::vector<int32_t> ids;
    tokenizer->encode("Hello  w\u00F6rld's \u4E2D <|endoftext|>\xFF\n", ids);
    tokenizer->encode(std::string_view(reinterpret_cast<const char*>(data), size), ids);
    tokenizer->decode(ids);
  } catch (const IoError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
