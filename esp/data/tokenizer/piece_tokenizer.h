// SentencePiece-style tokenizer: normalization, then BPE or unigram over pieces that include their spaces.
//
// Loaded from .model files (with exactly SentencePiece's steps) and from tokenizer.json files of LLaMA 2, T5 and
// similar models.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "esp/data/tokenizer/added_tokens.h"
#include "esp/data/tokenizer/charsmap.h"
#include "esp/data/tokenizer/piece_model.h"
#include "esp/data/tokenizer/tokenizer.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/data/tokenizer/word_cache.h"

namespace esp::data {

// One step of the normalizer of a tokenizer.json.
struct NormalizerStep {
  enum class Kind { charsmap, prepend, replace, squeeze, strip_left, strip_right } kind;
  // replace: replaces every `from` by `to`. squeeze: replaces two or more spaces by `to`. prepend: adds `to` in front.
  std::string from, to;
};

struct PieceTokenizerParts {
  PieceModelParts model;
  bool unigram = false;
  std::vector<Merge> merges;  // BPE of a tokenizer.json; a .model has scores instead
  bool ignore_merges = false;
  bool sentencepiece = false;  // true: normalize as a .model file (flags below); false: apply `steps` and `metaspace`
  Charsmap charsmap;
  bool add_prefix = true, remove_extra_spaces = true, escape_spaces = true;
  std::vector<NormalizerStep> steps;
  // add a space before the text (first) or before every part of it (always)
  enum class Prefix { never, first, always } prefix = Prefix::never;
  bool metaspace = false;                            // spaces become U+2581 and, with `split_at_spaces`, begin a word
  bool split_at_spaces = false, drop_white = false;  // drop_white: white space separates words and gets no ids
  bool decode_drops_space = true;                    // drops the first space of decoded text
  std::vector<AddedToken> added;
  std::string file_name, source;  // name and bytes of the loaded file, which save() writes unchanged
  SpecialTokens special;
};

class PieceTokenizer : public Tokenizer {
 public:
  explicit PieceTokenizer(PieceTokenizerParts parts);

  void encode(std::string_view text, std::vector<int32_t>& out) const override;
  void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  std::string_view kind() const override { return parts_.unigram ? "unigram" : "bpe"; }
  void save(const std::string& folder) const override;

 private:
  std::string normalize(std::string_view text) const;
  std::string sentencepiece_normalize(std::string_view text) const;
  void encode_normalized(std::string_view text, bool is_first, std::vector<int32_t>& out) const;
  void encode_words(std::string_view text, std::vector<int32_t>& out) const;
  void encode_word(std::string_view text, size_t readable, std::vector<int32_t>& ids) const;

  PieceTokenizerParts parts_;
  AddedTokens added_;
  std::unique_ptr<PieceModel> model_;
  std::unordered_map<std::string_view, int32_t> ids_;
  int32_t vocab_size_;
  bool words_independent_;  // no piece crosses a space, so words can be encoded and cached one by one
  WordCache cache_;
};

// Marks the pieces <0x00> to <0xFF> as byte pieces; returns true if all 256 exist.
bool set_byte_pieces(PieceModelParts& model);
std::unique_ptr<Tokenizer> read_piece_json(TokenizerFile& file, std::string_view text, std::string_view what);
// Reads a SentencePiece .model. Throws IoError.
std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, std::string_view what);

}  // namespace esp::data
