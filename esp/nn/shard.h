// Shards: the part of a parameter's dimension that one rank holds. Shard 0 of 1 is the whole dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace esp::nn {

struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

struct Shard {
  int index = 0, count = 1;

  bool whole() const { return count == 1; }
  // The range of n elements that the shard holds. Shard sizes differ by at most one; the first shards are larger.
  IndexRange of(int64_t n) const {
    const int64_t least = n / count, more = n % count;
    const int64_t begin = index * least + std::min<int64_t>(index, more);
    return {begin, begin + least + (index < more ? 1 : 0)};
  }
  bool operator==(const Shard&) const = default;
};

// The two shards of a rank: `tensor` for the weight matrices (tensor parallelism), `experts` for the experts (expert
// parallelism).
struct ModelShards {
  Shard tensor, experts;
  bool operator==(const ModelShards&) const = default;
};

// How tensor parallelism shards a parameter; default: not sharded. In packed parameters ([q | k | v]) each section is
// sharded separately. A group of `grain` elements (a head) is never split.
struct ShardSpec {
  int dim = -1;
  std::vector<int64_t> sections = {};  // extents of the sections along dim; empty: one section
  int64_t grain = 1;

  static ShardSpec none() { return {}; }
  static ShardSpec along(int dim) { return {dim, {}, 1}; }
};

// A contiguous range of tokens of a sequence. A TokenMap lists the ranges of the local tokens, in local order.
struct TokenRun {
  int64_t first = 0, count = 0;
  bool operator==(const TokenRun&) const = default;
};
struct TokenMap {
  std::vector<TokenRun> runs;
  int64_t length = 0;  // number of tokens of the whole sequence

  int64_t count() const {
    int64_t sum = 0;
    for (const TokenRun& run : runs) sum += run.count;
    return sum;
  }
  bool operator==(const TokenMap&) const = default;
};

}  // namespace esp::nn
