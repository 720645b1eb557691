// The merge table of byte-pair encoding (Sennrich et al. 2016): pairs of symbols, their rank and the merged token.
//
// A word starts as a list of symbols. The pair of lowest rank merges first, the leftmost among equal ranks, until no
// pair is in the table. Immutable after construction and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "esp/data/tokenizer/hashing.h"

namespace esp::data {

struct Merge {
  int32_t left, right, id;
  uint32_t rank;
};

class BpeMerges {
 public:
  // If a pair is given twice, the later rank counts.
  explicit BpeMerges(const std::vector<Merge>& merges);
  BpeMerges() : BpeMerges(std::vector<Merge>{}) {}

  // Merges symbols[0..count) in place and returns the number of remaining symbols.
  size_t apply(int32_t* symbols, size_t count) const;

  static constexpr uint64_t kNone = UINT64_MAX;
  // Returns rank << 32 | id, so that the smaller value merges first; kNone if the pair is not in the table.
  uint64_t find(int32_t left, int32_t right) const {
    uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].value;
      if (slots_[slot].key == kNone) return kNone;
    }
  }

 private:
  struct HashSlot {
    uint64_t key, value;
  };
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }
  size_t apply_short(int32_t* symbols, size_t count) const;
  size_t apply_long(int32_t* symbols, size_t count) const;

  std::vector<HashSlot> slots_;
  size_t mask_;
  int shift_;
};

}  // namespace esp::data
