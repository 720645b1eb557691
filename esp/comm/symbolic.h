// Symbolic memory contents, as contiguous ranges of elements: element i of a range is the sum of input element first+i
// over a set of ranks. The validator uses this to prove schedules; ring_frames prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

// Numbers for sets of ranks: equal sets have equal numbers. Number 0 is the empty set.
class RankSets {
 public:
  explicit RankSets(int size);
  uint32_t of(int rank);
  uint32_t all();
  // Number of the union. If the sets have a rank in common, returns nullopt and sets `shared` to that rank.
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

struct SymbolicRange {
  size_t offset = 0, count = 0;  // position in the region from which the range was read
  size_t first = 0;              // input element at the start of the range
  uint32_t set = 0;
};
using SymbolicRanges = std::vector<SymbolicRange>;

class SymbolicMemory {
 public:
  // Returns the consecutive ranges that cover [offset, offset + count). For memory that was never written, `set` is 0
  // (the empty set of ranks).
  SymbolicRanges read(size_t offset, size_t count) const;
  void write(size_t offset, const SymbolicRanges& parts);

 private:
  struct StoredRange {
    size_t end, first;
    uint32_t set;
  };
  void cut(size_t at);
  std::map<size_t, StoredRange> ranges_;  // key: begin of the range
};

// Cuts the ranges of two lists of equal total length at each other's boundaries. Range k then covers the same elements
// in both lists.
void align(SymbolicRanges& a, SymbolicRanges& b);

}  // namespace esp::comm
