// The two models of SentencePiece (Kudo & Richardson 2018): BPE over characters, and unigram, which takes the most
// probable segmentation. Both encode normalized text, with spaces written as U+2581. Immutable and thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/data/tokenizer/bpe_merges.h"

namespace esp::data {

// Piece types, with the numbers of the SentencePiece format.
enum class PieceType : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct ScoredPiece {
  std::string text;
  double score = 0;
  PieceType type = PieceType::normal;
};

// Encoding of a character without a piece: its byte pieces, the unknown id, or nothing.
struct UnknownRule {
  bool as_bytes = false;
  std::array<int32_t, 256> byte_ids{};
  int32_t id = -1;   // unknown id; -1: none
  bool fuse = true;  // adjacent unknown ids become one
  void emit(std::string_view character, std::vector<int32_t>& ids) const;
};

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
};

// The id of a piece is its index. Only normal and user-defined pieces match text.
struct PieceModelParts {
  std::vector<ScoredPiece> pieces;
  UnknownRule unknown;
  std::string what;  // name of the source in error messages
};

// BPE by scores: of all adjacent pairs that form a piece, the pair with the highest score merges first.
std::unique_ptr<PieceModel> make_scored_bpe(const PieceModelParts& parts);
// BPE by a list of merges.
std::unique_ptr<PieceModel> make_merged_bpe(const PieceModelParts& parts, const std::vector<Merge>& merges,
                                            bool ignore_merges);
// Sums scores in single precision (SentencePiece) or double precision (`tokenizers`). Near ties can differ.
std::unique_ptr<PieceModel> make_unigram(const PieceModelParts& parts, bool single_precision);

// Bytes of the UTF-8 character at `at`; 1 for an invalid byte.
size_t char_bytes(std::string_view text, size_t at);

}  // namespace esp::data
