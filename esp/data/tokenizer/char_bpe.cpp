#include <algorithm>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/piece_model.h"
#include "esp/data/tokenizer/unicode.h"

namespace esp::data {

void UnknownRule::emit(std::string_view character, std::vector<int32_t>& ids) const {
  if (as_bytes)
    for (char byte : character) ids.push_back(byte_ids[static_cast<uint8_t>(byte)]);
  else if (id >= 0 && !(fuse && !ids.empty() && ids.back() == id))
    ids.push_back(id);
}

size_t char_bytes(std::string_view text, size_t at) {
  return read_point(text.data() + at, text.size() - at).bytes;
}

namespace {

constexpr size_t kMaxChars = 1024;  // limit per piece, because every split of a piece is looked up

class CharBpe : public PieceModel {
 public:
  CharBpe(const PieceModelParts& parts, bool ignore_merges) : unknown_(parts.unknown), ignore_merges_(ignore_merges) {
    for (size_t i = 0; i < parts.pieces.size(); ++i) {
      const ScoredPiece& piece = parts.pieces[i];
      if (piece.type == PieceType::normal || piece.type == PieceType::user_defined)
        ids_.emplace(piece.text, static_cast<int32_t>(i));
      if (piece.type == PieceType::user_defined && !piece.text.empty()) {
        fixed_.emplace(piece.text, static_cast<int32_t>(i));
        longest_fixed_ = std::max(longest_fixed_, piece.text.size());
      }
    }
    num_pieces_ = static_cast<int32_t>(parts.pieces.size());
  }

  // Returns the id of a piece. A character that occurs only inside pieces gets an id >= num_pieces_: it can only be
  // merged.
  int32_t add_symbol(std::string_view text) {
    auto [row, fresh] = ids_.emplace(text, num_pieces_ + static_cast<int32_t>(merge_only_chars_.size()));
    if (fresh) merge_only_chars_.push_back(row->first);
    return row->second;
  }
  const std::unordered_map<std::string, int32_t>& ids() const { return ids_; }
  void set_merges(const std::vector<Merge>& merges) { merges_ = BpeMerges(merges); }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    if (ignore_merges_)
      if (auto row = ids_.find(std::string(text)); row != ids_.end() && row->second < num_pieces_) {
        ids.push_back(row->second);
        return;
      }
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      auto [id, bytes] = fixed_at(text, at);
      if (bytes > 0) {
        merge(text.substr(begin, at - begin), ids);
        ids.push_back(id);
        begin = at += bytes;
      } else {
        at += char_bytes(text, at);
      }
    }
    merge(text.substr(begin), ids);
  }

 private:
  std::pair<int32_t, size_t> fixed_at(std::string_view text, size_t at) const {
    for (size_t bytes = std::min(longest_fixed_, text.size() - at); bytes > 0; --bytes)
      if (auto row = fixed_.find(text.substr(at, bytes)); row != fixed_.end()) return {row->second, bytes};
    return {0, 0};
  }

  void merge(std::string_view text, std::vector<int32_t>& ids) const {
    // A character without an id becomes -1 - (its index in unknown_chars). No merge contains a negative id.
    std::vector<int32_t> symbols;
    std::vector<std::string_view> unknown_chars;
    std::string letter;
    for (size_t at = 0; at < text.size();) {
      size_t bytes = char_bytes(text, at);
      letter.assign(text.substr(at, bytes));
      auto row = ids_.find(letter);
      if (row != ids_.end()) {
        symbols.push_back(row->second);
      } else {
        symbols.push_back(-1 - static_cast<int32_t>(unknown_chars.size()));
        unknown_chars.push_back(text.substr(at, bytes));
      }
      at += bytes;
    }
    size_t left = merges_.apply(symbols.data(), symbols.size());
    for (size_t i = 0; i < left; ++i) {
      int32_t id = symbols[i];
      if (id < 0)
        unknown_.emit(unknown_chars[static_cast<size_t>(-1 - id)], ids);
      else if (id >= num_pieces_)
        unknown_.emit(merge_only_chars_[static_cast<size_t>(id - num_pieces_)], ids);
      else
        ids.push_back(id);
    }
  }

  std::unordered_map<std::string, int32_t> ids_;
  std::map<std::string, int32_t, std::less<>> fixed_;  // user-defined pieces: never merged, never split
  size_t longest_fixed_ = 0;
  std::vector<std::string> merge_only_chars_;
  int32_t num_pieces_ = 0;
  BpeMerges merges_;
  UnknownRule unknown_;
  bool ignore_merges_;
};

}  // namespace

std::unique_ptr<PieceModel> make_scored_bpe(const PieceModelParts& parts) {
  auto model = std::make_unique<CharBpe>(parts, false);
  std::map<double, uint32_t, std::greater<>> ranks;
  for (const ScoredPiece& piece : parts.pieces) {
    if (piece.type == PieceType::unused)
      throw IoError(fmt::format("{}: the piece \"{}\" is unused; a BPE model with unused pieces is not supported",
                                parts.what, piece.text));
    if (piece.type == PieceType::normal) ranks[piece.score] = 0;
  }
  uint32_t next = 0;
  for (auto& [score, rank] : ranks) rank = next++;
  std::vector<Merge> merges;
  std::vector<size_t> cuts;
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
    const ScoredPiece& piece = parts.pieces[i];
    if (piece.type != PieceType::normal) continue;
    cuts.clear();
    for (size_t at = 0; at < piece.text.size(); at += char_bytes(piece.text, at)) cuts.push_back(at);
    cuts.push_back(piece.text.size());
    if (cuts.size() > kMaxChars)
      throw IoError(
          fmt::format("{}: a piece has {} characters; expected less than {}", parts.what, cuts.size() - 1, kMaxChars));
    if (cuts.size() < 3) continue;
    std::string_view text = piece.text;
    for (size_t c = 1; c + 1 < cuts.size(); ++c) {
      std::string_view halves[2] = {text.substr(0, cuts[c]), text.substr(cuts[c])};
      bool alone[2] = {c == 1, c + 2 == cuts.size()};
      int32_t ids[2];
      bool both = true;
      for (int h = 0; h < 2; ++h) {
        if (alone[h]) {
          ids[h] = model->add_symbol(halves[h]);
        } else {
          auto row = model->ids().find(std::string(halves[h]));
          both &= row != model->ids().end();
          ids[h] = row != model->ids().end() ? row->second : -1;
        }
      }
      if (both) merges.push_back({ids[0], ids[1], static_cast<int32_t>(i), ranks.at(piece.score)});
    }
  }
  model->set_merges(merges);
  return model;
}

std::unique_ptr<PieceModel> make_merged_bpe(const PieceModelParts& parts, const std::vector<Merge>& merges,
                                            bool ignore_merges) {
  auto model = std::make_unique<CharBpe>(parts, ignore_merges);
  model->set_merges(merges);
  return model;
}

}  // namespace esp::data
