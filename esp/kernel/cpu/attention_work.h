// Shared non-vector parts of the attention kernels: visibility, scratch, and the division of work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "esp/kernel/attention.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {

// Queries and keys of a tile: one operand of a tile's product (64·64 floats) stays in a 32 KiB first-level cache while
// the other streams.
constexpr int64_t kAttentionTile = 64;

constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

inline int64_t num_tiles(int64_t tokens) {
  return (tokens + kAttentionTile - 1) / kAttentionTile;
}

// Keys that query i of sequence b sees: the first this many.
inline int64_t visible_keys(const AttentionShape& s, int64_t b, int64_t i) {
  int64_t n = s.key_lengths ? s.key_lengths[b] : s.num_keys;
  if (s.causal) n = std::min(n, i + s.causal_offset + 1);
  return std::clamp<int64_t>(n, 0, s.num_keys);
}

// The first query that sees key j, were the sequence long enough.
inline int64_t first_query(const AttentionShape& s, int64_t j) {
  return s.causal ? std::max<int64_t>(0, j - s.causal_offset) : 0;
}

void check_attention(const AttentionShape& shape);

// Up to this many queries, forward reads keys and values in place.
constexpr int64_t kFewQueries = 4;
void attention_decode(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                      DType dtype, const device::Stream& stream);

// This thread's scratch, kept for the next call and grown when a call needs more.
void* attention_scratch(size_t bytes);

// Parts of a piece of memory, each on its own cache lines.
template <typename A>
class Parts {
 public:
  explicit Parts(A* memory) : next_(memory) {}
  A* take(int64_t count) {
    A* part = next_;
    next_ += rounded(count);
    return part;
  }
  static int64_t rounded(int64_t count) { return (count + kLine - 1) / kLine * kLine; }

 private:
  static constexpr int64_t kLine = 64 / sizeof(A);
  A* next_;
};

// Runs f(worker, begin, end) over consecutive blocks [0, count) so that each worker has about the same sum of
// cost(block). Blocks may not depend on each other: the cuts move with the number of threads.
template <typename Cost, typename F>
void split_by_cost(const device::Stream& stream, int64_t count, Cost&& cost, F&& f) {
  const int64_t num_threads = stream.num_threads();
  int64_t total = 0;
  for (int64_t block = 0; block < count; ++block) total += cost(block);
  device::parallel_for(stream, num_threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      int64_t begin = count, end = count, before = 0;
      for (int64_t block = 0; block < count; ++block) {
        const int64_t c = cost(block);
        const int64_t owner =
            std::min(num_threads - 1, (2 * before + c) * num_threads / std::max<int64_t>(2 * total, 1));
        if (owner >= worker) begin = std::min(begin, block);
        if (owner > worker) {
          end = block;
          break;
        }
        before += c;
      }
      if (begin < end) f(worker, begin, end);
    }
  });
}

}  // namespace esp::kernel
