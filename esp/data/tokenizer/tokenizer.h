// Text to token ids and back.
//
// One interface over bytes, byte-level BPE, WordPiece and SentencePiece models. A tokenizer is immutable once loaded:
// every const member may be called from any number of threads at once (word caches inside are lock-free). Text is
// bytes; where a model needs characters, a byte that is no valid UTF-8 stands for itself (byte-level models) or becomes
// U+FFFD (the others). The caller owns every buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp::data {

// Ids that have a role; absent where the model has no such token.
struct SpecialTokens {
  std::optional<int32_t> bos, eos, pad, mask, cls, sep, unk;
};

// Ids put around a text: BOS, EOS, [CLS], [SEP].
struct TextTemplate {
  std::vector<int32_t> before = {}, after = {};
  bool operator==(const TextTemplate&) const = default;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text`. Added tokens written in the text ("<|endoftext|>") become their one id; the
  // text template is not applied.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;
  // The same, but added tokens in the text are plain text: for untrusted input.
  virtual void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const = 0;
  // Ids outside the vocabulary are a UsageError. Special tokens are written out as their names.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  // One more than the largest id: the rows an embedding needs.
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // "byte", "bpe", "wordpiece", "unigram".
  virtual std::string_view kind() const = 0;
  // Writes tokenizer.json (or the file it was read from) into an existing folder; load_tokenizer(folder) gives equal
  // ids.
  virtual void save(const std::string& folder) const = 0;

  const SpecialTokens& special() const { return special_; }
  void set_special(const SpecialTokens& special) { special_ = special; }
  // What `transformers` puts around a single text: the post-processor of a tokenizer.json, add_bos_token and
  // add_eos_token of tokenizer_config.json, or its tokenizer_class where the tokenizer's file has no post-processor.
  const TextTemplate& text_template() const { return template_; }
  void set_text_template(TextTemplate around) { template_ = std::move(around); }

 protected:
  SpecialTokens special_;
  TextTemplate template_;
};

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text);
// The same with the text template around it.
std::vector<int32_t> encode_with_template(const Tokenizer& tokenizer, std::string_view text);

// "byte" (ids 0..255 and end of text 256); a tokenizer.json; a .tiktoken file; a .model of SentencePiece; a vocab.txt
// of BERT; or a folder holding tokenizer.json, vocab.json + merges.txt, one *.tiktoken, tokenizer.model or vocab.txt,
// looked for in that order. `pattern` names the split pattern where the file does not say (.tiktoken; see split.h):
// empty takes the one that fits the file's name, gpt2 otherwise. Unknown names are UsageError, unreadable or malformed
// files IoError.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path_or_name, std::string_view pattern = {});

// The files that load_tokenizer(path_or_name) reads; none of "byte". IoError as there.
std::vector<std::string> tokenizer_files(const std::string& path_or_name);

std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace esp::data
