// Fuzzes the readers of GPT-2's vocab.json + merges.txt and of BERT's vocab.txt. Any text is rejected or read. The
// first byte chooses the format. For GPT-2, a zero byte ends the first file. The test can put the 256 byte characters
// in front, so that inputs stay short.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/tokenizer/bpe_files.h"
#include "esp/data/tokenizer/byte_unicode.h"
#include "esp/data/tokenizer/wordpiece.h"

namespace {

using namespace esp;

// Returns `{"Ā":0,…,` followed by `rest`, which adds more tokens and the closing brace.
std::string with_letters(std::string_view rest) {
  std::string json = "{";
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    const std::string letter = data::bytes_to_unicode({&one, 1});
    json += '"';
    if (letter == "\"" || letter == "\\") json += '\\';
    json += letter + "\":" + std::to_string(byte) + ",";
  }
  return json + std::string(rest);
}

void encode_some(const data::Tokenizer& tokenizer, std::string_view text, bool exact) {
  std::vector<int32_t> ids;
  tokenizer.encode_ordinary(text, ids);
  for (int32_t id : ids) ESP_CHECK(id >= 0 && id < tokenizer.vocab_size());
  const std::string back = tokenizer.decode(ids);
  if (exact) ESP_CHECK(back == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 65536) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view first = text.substr(0, text.find('\0'));
  const std::string_view second = text.substr(std::min(first.size() + 1, text.size()));
  try {
    switch (data[0] % 3) {
      case 0:
        encode_some(*data::read_gpt2_files(first, second, "fuzz input"), first, false);
        break;
      case 1:  // every byte has a token, so decoding restores the text
        encode_some(*data::read_gpt2_files(with_letters(first), second, "fuzz input"), second, true);
        break;
      case 2:
        encode_some(*data::read_vocab_txt(first, (data[0] & 4) != 0, "fuzz input"), second, false);
        break;
    }
  } catch (const IoError&) {
  }
  return 0;
}
