// Converts text to token ids and back.
//
// One interface for bytes, byte-level BPE, WordPiece and SentencePiece models. A loaded tokenizer is immutable and
// thread-safe (its word caches are lock-free). Text is bytes. A byte that is not valid UTF-8 is encoded as itself by
// byte-level models and becomes U+FFFD in the others. The caller owns every buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp::data {

// Ids of special tokens; absent if the model has no such token.
struct SpecialTokens {
  std::optional<int32_t> bos, eos, pad, mask, cls, sep, unk;
};

// Ids added around a text: BOS, EOS, [CLS], [SEP].
struct TextTemplate {
  std::vector<int32_t> before = {}, after = {};
  bool operator==(const TextTemplate&) const = default;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text`. Added tokens in the text ("<|endoftext|>") become their own id. Does not apply the text
  // template.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;
  // As encode(), but added tokens in the text are encoded as plain text. Use it for untrusted input.
  virtual void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const = 0;
  // Writes special tokens as their names. Throws UsageError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  // Largest id + 1: the number of rows of an embedding.
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // One of "byte", "bpe", "wordpiece", "unigram".
  virtual std::string_view kind() const = 0;
  // Writes tokenizer.json (or the loaded file) into an existing folder; load_tokenizer(folder) then gives equal ids.
  virtual void save(const std::string& folder) const = 0;

  const SpecialTokens& special() const { return special_; }
  void set_special(const SpecialTokens& special) { special_ = special; }
  // The ids that `transformers` adds around a single text. They come from the post-processor of tokenizer.json, from
  // add_bos_token and add_eos_token of tokenizer_config.json, or from its tokenizer_class if there is no
  // post-processor.
  const TextTemplate& text_template() const { return template_; }
  void set_text_template(TextTemplate around) { template_ = std::move(around); }

 protected:
  SpecialTokens special_;
  TextTemplate template_;
};

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text);
// As encode(), plus the ids of the text template before and after.
std::vector<int32_t> encode_with_template(const Tokenizer& tokenizer, std::string_view text);

// Accepts "byte" (ids 0..255 and end of text 256), a tokenizer.json, a .tiktoken file, a SentencePiece .model, a BERT
// vocab.txt, or a folder. In a folder it looks for tokenizer.json, vocab.json + merges.txt, one *.tiktoken,
// tokenizer.model, vocab.txt, in that order. `pattern` names the split pattern for files that do not define one
// (.tiktoken; see split.h). If empty, the file name decides, otherwise gpt2. Unknown names are UsageError; unreadable
// or malformed files are IoError.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path_or_name, std::string_view pattern = {});

// The files that load_tokenizer(path_or_name) reads; empty for "byte". Throws IoError as load_tokenizer does.
std::vector<std::string> tokenizer_files(const std::string& path_or_name);

std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace esp::data
