// Byte-level BPE tokenizer: splits text by a pattern and merges the bytes of each piece. Used by GPT-2, GPT-4, LLaMA 3
// and by tokenizers trained here.
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
  TokenTable tokens;          // as bytes, without added tokens that no merge produces
  std::vector<Merge> merges;  // in order of rank
  SplitPattern pattern = SplitPattern::gpt2;
  bool ignore_merges = false;      // a piece that is itself a token is not merged from bytes
  bool add_prefix_space = false;   // adds a space to text that begins without one
  std::optional<int32_t> unknown;  // id for bytes without a token; if absent, such bytes are dropped
  bool fuse_unknown = false;       // adjacent unknown ids become one
  std::vector<AddedToken> added;
  std::string source;  // text of the loaded tokenizer.json, which save() writes unchanged; empty: save() composes it
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

  std::string to_json() const;  // composes a tokenizer.json
  const BpeParts& parts() const { return parts_; }

 private:
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;
  size_t encode_short(std::string_view piece, int32_t* ids) const;

  BpeParts parts_;
  AddedTokens added_;
  BpeMerges merges_;
  std::array<int32_t, 256> byte_ids_;  // -1: the byte has no token
  int32_t vocab_size_;
  WordCache cache_;
};

// Finds special tokens (BOS, EOS, …) by the names that known models use.
SpecialTokens guess_special(const Tokenizer& tokenizer);

}  // namespace esp::data
