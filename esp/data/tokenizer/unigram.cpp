// Unigram model (Kudo 2018): the segmentation with the largest sum of log-probabilities, by the Viterbi algorithm over
// a trie.
#include <algorithm>
#include <bit>

#include "esp/data/tokenizer/piece_model.h"

namespace esp::data {
namespace {

constexpr double kUnknownPenalty = 10;

// A trie of byte strings in one open-addressing table. Its size is bounded by the bytes of the pieces.
class Trie {
 public:
  explicit Trie(const PieceModelParts& parts) {
    size_t bytes = 1;
    for (const ScoredPiece& piece : parts.pieces) bytes += piece.text.size();
    slots_.assign(std::bit_ceil(2 * bytes + 2), {kFree, 0});
    shift_ = 64 - std::countr_zero(slots_.size());
    values_.push_back(-1);
    for (size_t i = 0; i < parts.pieces.size(); ++i) {
      const ScoredPiece& piece = parts.pieces[i];
      if (piece.text.empty() || (piece.type != PieceType::normal && piece.type != PieceType::user_defined)) continue;
      uint32_t node = 0;
      for (char byte : piece.text) node = add(node, static_cast<uint8_t>(byte));
      if (values_[node] < 0) values_[node] = static_cast<int32_t>(i);
    }
  }

  static constexpr uint32_t kNowhere = UINT32_MAX;
  uint32_t step(uint32_t node, uint8_t byte) const {
    uint64_t key = uint64_t{node} << 8 | byte;
    for (size_t slot = slot_of(key);; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot].key == key) return slots_[slot].node;
      if (slots_[slot].key == kFree) return kNowhere;
    }
  }
  int32_t value(uint32_t node) const { return values_[node]; }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct NodeSlot {
    uint64_t key;
    uint32_t node;
  };
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }
  uint32_t add(uint32_t node, uint8_t byte) {
    uint64_t key = uint64_t{node} << 8 | byte;
    size_t slot = slot_of(key);
    while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & (slots_.size() - 1);
    if (slots_[slot].key == kFree) {
      slots_[slot] = {key, static_cast<uint32_t>(values_.size())};
      values_.push_back(-1);
    }
    return slots_[slot].node;
  }

  std::vector<NodeSlot> slots_;
  std::vector<int32_t> values_;
  int shift_;
};

template <typename Real>
class Unigram : public PieceModel {
 public:
  explicit Unigram(const PieceModelParts& parts) : trie_(parts), unknown_(parts.unknown) {
    double lowest = 0, highest = 0;
    bool any = false;
    for (const ScoredPiece& piece : parts.pieces) {
      if (piece.type != PieceType::normal) continue;
      lowest = any ? std::min(lowest, piece.score) : piece.score;
      highest = any ? std::max(highest, piece.score) : piece.score;
      any = true;
    }
    unknown_score_ = static_cast<Real>(static_cast<Real>(lowest) - Real{kUnknownPenalty});
    scores_.reserve(parts.pieces.size());
    for (const ScoredPiece& piece : parts.pieces) {
      // A user-defined symbol always wins: its score is about the best score of any piece, times its number of bytes.
      bool fixed = piece.type == PieceType::user_defined;
      scores_.push_back(fixed ? static_cast<Real>(static_cast<double>(piece.text.size()) * highest - 0.1)
                              : static_cast<Real>(piece.score));
    }
  }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    struct End {
      Real score = 0;
      int32_t id = kUnknown;
      size_t from = kUnreached;
    };
    std::vector<End> ends(text.size() + 1);
    auto offer = [](End& end, Real score, int32_t id, size_t from) {
      if (end.from == kUnreached || score > end.score) end = {score, id, from};
    };
    for (size_t at = 0; at < text.size();) {
      Real here = ends[at].score;
      size_t one_char = char_bytes(text, at);
      bool single = false;
      uint32_t node = 0;
      for (size_t to = at; to < text.size();) {
        node = trie_.step(node, static_cast<uint8_t>(text[to]));
        if (node == Trie::kNowhere) break;
        ++to;
        int32_t id = trie_.value(node);
        if (id < 0) continue;
        offer(ends[to], scores_[static_cast<size_t>(id)] + here, id, at);
        single |= to - at == one_char;
      }
      if (!single) offer(ends[at + one_char], unknown_score_ + here, kUnknown, at);
      at += one_char;
    }
    std::vector<size_t> path;
    for (size_t at = text.size(); at > 0; at = ends[at].from) path.push_back(at);
    for (size_t i = path.size(); i-- > 0;) {
      const End& end = ends[path[i]];
      if (end.id == kUnknown)
        unknown_.emit(text.substr(end.from, path[i] - end.from), ids);
      else
        ids.push_back(end.id);
    }
  }

 private:
  static constexpr int32_t kUnknown = -1;
  static constexpr size_t kUnreached = SIZE_MAX;
  Trie trie_;
  UnknownRule unknown_;
  std::vector<Real> scores_;
  Real unknown_score_;
};

}  // namespace

std::unique_ptr<PieceModel> make_unigram(const PieceModelParts& parts, bool single_precision) {
  if (single_precision) return std::make_unique<Unigram<float>>(parts);
  return std::make_unique<Unigram<double>>(parts);
}

}  // namespace esp::data
