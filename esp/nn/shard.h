// Sharding of parameters: which part of a dimension a rank holds. Shard 0 of 1 is the whole.
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
  // The range of n elements it holds; sizes differ by at most one, the first shards are larger.
  IndexRange of(int64_t n) const {
    const int64_t least = n / count, more = n % count;
    const int64_t begin = index * least + std::min<int64_t>(index, more);
    return {begin, begin + least + (index < more ? 1 : 0)};
  }
  bool operator==(const Shard&) const = default;
};

// The shards of a rank: of matrices along the tensor axis, of experts along the expert axis.
struct ModelShards {
  Shard tensor, experts;
  bool operator==(const ModelShards&) const = default;
};

// How a parameter is sharded along the tensor axis; default: not at all. In packed parameters ([q | k | v]) each
// section is sharded; `grain` elements (a head) stay together.
struct ShardSpec {
  int dim = -1;
  std::vector<int64_t> sections = {};  // extents along dim; empty: one, all of it
  int64_t grain = 1;

  static ShardSpec none() { return {}; }
  static ShardSpec along(int dim) { return {dim, {}, 1}; }
};

// The local tokens of a sequence, as runs of consecutive tokens, in local order.
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
