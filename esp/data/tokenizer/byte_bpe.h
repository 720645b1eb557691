// Byte-level BPE: text is split by a pattern, each piece's bytes are merged. GPT-2, GPT-4, LLaMA 3 and what we train.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "esp/data/tokenizer/added_tokens.h"
#include "esp/data/tokenizer/bpe_merges.h"
#include "esp/data/tokenizer/split.h"
#include "esp/data/tokenizer/token_table.h"
#include "esp/data/tokenizer/tokenizer.h"
#include "esp/data/tokenizer/word_cache.h"

namespace esp::data {

struct BpeParts {
  TokenTable tokens;          // as bytes, without the added ones that no merge makes
  std::vector<Merge> merges;  // in order of rank
  SplitPattern pattern = SplitPattern::gpt2;
  bool whole_words_first = false;  // a piece that is a token is that token, whatever the merges say
  bool add_prefix_space = false;   // text that begins without a space gets one
  std::optional<int32_t> unknown;  // for bytes without a token; without it they vanish
  bool fuse_unknown = false;       // neighbouring unknowns become one
  std::vector<AddedToken> added;
  std::string source;  // the tokenizer.json it came from, written back as it was; empty: composed when saved
};

class ByteBpe : public Tokenizer {
 public:
  explicit ByteBpe(BpeParts parts);

  void encode(std::string_view text, std::vector<int32_t>& out) const override;
  void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  std::string_view kind() const override { return "bpe"; }
  void save(const std::string& folder) const override;

  std::string to_json() const;  // a tokenizer.json
  const BpeParts& parts() const { return parts_; }

 private:
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;
  size_t encode_short(std::string_view piece, int32_t* ids) const;

  BpeParts parts_;
  AddedTokens added_;
  BpeMerges merges_;
  std::array<int32_t, 256> byte_ids_;  // -1: no token
  int32_t vocab_size_;
  WordCache cache_;
};

// Roles by the names that known models give them, where `tokenizer` has such a token.
SpecialTokens guess_special(const Tokenizer& tokenizer);

}  // namespace esp::data
