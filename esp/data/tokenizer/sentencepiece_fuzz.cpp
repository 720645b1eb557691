// Fuzzes the reader of SentencePiece files. Any bytes are rejected, or give a model that encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "esp/base/error.h"
#include "esp/data/tokenizer/piece_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  if (size > 65536) return 0;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    auto tokenizer = data::read_sentencepiece(bytes, "fuzz input");
    std::vector<int32_t> ids;
    tokenizer->encode(" Hello  w\u00F6rld \u2581\u4E2D\xFF\n", ids);
    tokenizer->encode(bytes, ids);
    tokenizer->decode(ids);
  } catch (const IoError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
