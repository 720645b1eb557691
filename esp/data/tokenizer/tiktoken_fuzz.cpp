// Fuzzes the reader of tiktoken rank files. Any text is rejected or read. The test puts ranks of the 256 bytes in
// front, so that inputs stay short.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/tokenizer/bpe_files.h"

namespace {

std::string all_bytes() {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (unsigned byte = 0; byte < 256; ++byte) {
    ranks += kAlphabet[byte >> 2];
    ranks += kAlphabet[(byte & 3) << 4];
    ranks += "== " + std::to_string(byte) + "\n";
  }
  return ranks;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp;
  static const std::string kBytes = all_bytes();
  if (size > 65536) return 0;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::string& ranks : {std::string(text), kBytes + std::string(text)}) try {
      auto tokenizer = data::read_tiktoken(ranks, "fuzz", "o200k", "fuzz input");
      std::vector<int32_t> ids;
      tokenizer->encode(text, ids);
      ESP_CHECK(tokenizer->decode(ids) == text);
    } catch (const IoError&) {
    }
  return 0;
}
