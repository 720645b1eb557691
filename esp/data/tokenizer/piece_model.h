// The two models behind SentencePiece files (Kudo & Richardson 2018): BPE over characters, and unigram, which takes the
// most probable cut. Both see text that is normalized already, spaces written as U+2581. Immutable, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/data/tokenizer/bpe_merges.h"

namespace esp::data {

// The types of SentencePiece's own format, with its numbers.
enum class PieceType : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Piece {
  std::string text;
  double score = 0;
  PieceType type = PieceType::normal;
};

// What becomes of a character without a piece: its bytes, or the unknown id, or nothing.
struct UnknownRule {
  bool as_bytes = false;
  std::array<int32_t, 256> byte_ids{};
  int32_t id = -1;   // -1: none
  bool fuse = true;  // neighbours become one
  void emit(std::string_view character, std::vector<int32_t>& ids) const;
};

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
};

// The id of a piece is its place in the list. Only normal and user-defined pieces are found in text.
struct ModelParts {
  std::vector<Piece> pieces;
  UnknownRule unknown;
  std::string what;  // the source, for errors
};

// BPE by scores: of all neighbours whose text together is a piece, those of the highest score join first.
std::unique_ptr<PieceModel> make_scored_bpe(const ModelParts& parts);
// BPE by a list of merges.
std::unique_ptr<PieceModel> make_merged_bpe(const ModelParts& parts, const std::vector<Merge>& merges,
                                            bool whole_words_first);
// In single precision, as SentencePiece, or double, as `tokenizers`: near ties fall differently.
std::unique_ptr<PieceModel> make_unigram(const ModelParts& parts, bool single_precision);

// Bytes of the character at `at`; 1 where the byte begins none.
size_t char_bytes(std::string_view text, size_t at);

}  // namespace esp::data
