// Byte tokenizer: the id of a byte is its value, and 256 is end of text. It is saved as the tokenizer.json of a BPE
// without merges, so that other programs can load it.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/post_processor.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr int32_t kEndId = 256;

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() { special_.eos = special_.bos = kEndId; }

  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    for (size_t at = 0;;) {
      size_t end = text.find(kEndOfText, at);
      encode_ordinary(text.substr(at, end == text.npos ? end : end - at), out);
      if (end == text.npos) return;
      out.push_back(kEndId);
      at = end + kEndOfText.size();
    }
  }

  void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const override {
    size_t first = out.size();
    out.resize(first + text.size());
    for (size_t i = 0; i < text.size(); ++i) out[first + i] = static_cast<uint8_t>(text[i]);
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (int32_t id : ids) {
      if (id < 0 || id > kEndId) throw UsageError(fmt::format("id {} is outside the byte vocabulary of 257 ids", id));
      if (id == kEndId)
        text += kEndOfText;
      else
        text += static_cast<char>(id);
    }
    return text;
  }

  int32_t vocab_size() const override { return kEndId + 1; }
  std::optional<int32_t> id_of(std::string_view token) const override {
    if (token == kEndOfText) return kEndId;
    if (token.size() == 1) return static_cast<uint8_t>(token[0]);
    return std::nullopt;
  }
  std::string_view kind() const override { return "byte"; }
  void save(const std::string& folder) const override {
    std::vector<std::pair<std::string, int32_t>> bytes;
    for (int32_t byte = 0; byte < kEndId; ++byte) bytes.emplace_back(std::string(1, static_cast<char>(byte)), byte);
    BpeParts parts;
    parts.tokens = TokenTable(std::move(bytes), "bytes");
    parts.pattern = SplitPattern::none;
    obs::write_whole_file(
        folder + "/tokenizer.json",
        compose_tokenizer_json(parts, {AddedToken{std::string(kEndOfText), kEndId}}, compose_post_processor(*this)));
  }
};

}  // namespace

bool is_byte_tokenizer(const BpeParts& parts) {
  if (!parts.merges.empty() || parts.pattern != SplitPattern::none || parts.add_prefix_space ||
      parts.added.size() != 1 || parts.added[0].content != kEndOfText || parts.added[0].id != kEndId ||
      parts.tokens.size() != kEndId + 1)
    return false;
  for (int32_t byte = 0; byte < kEndId; ++byte)
    if (parts.tokens.bytes(byte) != std::string_view(std::string(1, static_cast<char>(byte)))) return false;
  return true;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace esp::data
