// A tokenizer over SentencePiece-like models: normalization, then BPE or unigram over pieces that carry their spaces.
//
// Read from .model files (exactly SentencePiece's steps) and from tokenizer.json files of LLaMA 2, T5 and their like.
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

// One step of a tokenizer.json's normalizer.
struct TextStep {
  enum class Kind { charsmap, prepend, replace, squeeze, strip_left, strip_right } kind;
  std::string from, to;  // replace: each `from` by `to`; squeeze: two spaces or more by `to`; prepend: `to`
};

struct PieceParts {
  ModelParts model;
  bool unigram = false;
  std::vector<Merge> merges;  // of a BPE from tokenizer.json; a .model has scores instead
  bool whole_words_first = false;
  bool sentencepiece = false;  // the steps of a .model file, below; otherwise those of `steps` and the space rule
  Charsmap charsmap;
  bool add_prefix = true, remove_extra_spaces = true, escape_spaces = true;
  std::vector<TextStep> steps;
  enum class Prefix { never, first, always } prefix = Prefix::never;  // a space before the text, before each part of it
  bool space_rule = false;                         // spaces become U+2581 and, where `cut_at_spaces`, begin a word
  bool cut_at_spaces = false, drop_white = false;  // drop_white: white space only separates
  bool decode_drops_space = true;                  // the first one
  std::vector<AddedToken> added;
  std::string file_name, source;  // written back as it was
  SpecialTokens special;
};

class PieceTokenizer : public Tokenizer {
 public:
  explicit PieceTokenizer(PieceParts parts);

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

  PieceParts parts_;
  AddedTokens added_;
  std::unique_ptr<PieceModel> model_;
  std::unordered_map<std::string_view, int32_t> ids_;
  int32_t vocab_size_;
  bool words_apart_;  // no piece goes on across a space, so words can be looked at, and remembered, one by one
  WordCache cache_;
};

// Finds the pieces <0x00> to <0xFF> and marks them; whether all are there.
bool set_byte_pieces(ModelParts& model);
std::unique_ptr<Tokenizer> read_piece_json(TokenizerFile& file, std::string_view text, std::string_view what);
// SentencePiece's .model. Throws IoError.
std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, std::string_view what);

}  // namespace esp::data
