// Symbolic memory contents: element i of a run is the sum over a set of ranks of input element first + i. The validator
// proves schedules with it; ring_frames prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

// Sets of ranks, interned: equal sets have equal numbers. 0 is the empty set.
class RankSets {
 public:
  explicit RankSets(int size);
  uint32_t of(int rank);
  uint32_t all();
  // None when the sets share a rank; `shared` is that rank.
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

struct SymbolicRun {
  size_t offset = 0, count = 0;  // within the region it was read from
  size_t first = 0;              // input element of the part's start
  uint32_t set = 0;
};
using SymbolicRuns = std::vector<SymbolicRun>;

class SymbolicMemory {
 public:
  // Consecutive runs covering [offset, offset + count); memory never written has set 0.
  SymbolicRuns read(size_t offset, size_t count) const;
  void write(size_t offset, const SymbolicRuns& parts);

 private:
  struct StoredRun {
    size_t end, first;
    uint32_t set;
  };
  void cut(size_t at);
  std::map<size_t, StoredRun> pieces_;  // by begin
};

// Cuts two lists of equal length at each other's boundaries, so that they can be combined run by run.
void align(SymbolicRuns& a, SymbolicRuns& b);

}  // namespace esp::comm
