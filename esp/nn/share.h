// Which part of a divided dimension one holder of a model has. A holder that has all of it has share 0 of 1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace esp::nn {

struct Interval {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

struct Share {
  int index = 0, count = 1;

  bool whole() const { return count == 1; }
  // Its part of n things, as even as can be: the first ones have one more.
  Interval of(int64_t n) const {
    const int64_t least = n / count, more = n % count;
    const int64_t begin = index * least + std::min<int64_t>(index, more);
    return {begin, begin + least + (index < more ? 1 : 0)};
  }
  bool operator==(const Share&) const = default;
};

// What the holders of one model divide: matrices along the tensor axis, experts along theirs.
struct Shares {
  Share tensor, experts;
  bool operator==(const Shares&) const = default;
};

// How a parameter is divided along the tensor axis; by default not at all. Packed parameters ([q | k | v]) divide each
// of their sections; `grain` elements (a head) stay together.
struct Cut {
  int dim = -1;
  std::vector<int64_t> sections = {};  // extents along dim; empty: one, all of it
  int64_t grain = 1;

  static Cut none() { return {}; }
  static Cut along(int dim) { return {dim, {}, 1}; }
};

// Tokens of a sequence that are held, as runs of neighbours, in the order in which they lie.
struct TokenRun {
  int64_t first = 0, count = 0;
  bool operator==(const TokenRun&) const = default;
};
struct TokenMap {
  std::vector<TokenRun> runs;
  int64_t length = 0;  // of the whole sequence

  int64_t count() const {
    int64_t sum = 0;
    for (const TokenRun& run : runs) sum += run.count;
    return sum;
  }
  bool operator==(const TokenMap&) const = default;
};

}  // namespace esp::nn
