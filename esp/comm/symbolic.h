// What memory holds, in symbols: element i of a piece is the sum, over a set of ranks, of their input's element first +
// i. The validator proves schedules with it, the ring's frames print it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

// Sets of ranks by number, so that equal sets are equal numbers. 0 is the empty set.
class RankSets {
 public:
  explicit RankSets(int size);
  uint32_t of(int rank);
  uint32_t all();
  // None when the sets share a rank; `shared` says which.
  std::optional<uint32_t> disjoint_union(uint32_t a, uint32_t b, int& shared);
  uint32_t any_union(uint32_t a, uint32_t b);
  std::vector<int> ranks(uint32_t set) const;

 private:
  using Bits = std::vector<uint64_t>;
  uint32_t number(const Bits& bits);
  int size_;
  std::vector<Bits> sets_;
  std::map<Bits, uint32_t> numbers_;
};

struct Part {
  size_t offset = 0, count = 0;  // within the region it was read from
  size_t first = 0;              // input element of the part's start
  uint32_t set = 0;
};
using Parts = std::vector<Part>;

class SymbolicMemory {
 public:
  // Consecutive parts, in order, covering [offset, offset + count); parts never written have set 0.
  Parts read(size_t offset, size_t count) const;
  void write(size_t offset, const Parts& parts);

 private:
  struct Piece {
    size_t end, first;
    uint32_t set;
  };
  void cut(size_t at);
  std::map<size_t, Piece> pieces_;  // by begin
};

// Cuts two readings of equal length at each other's seams, so that they can be combined part by part.
void align(Parts& a, Parts& b);

}  // namespace esp::comm
