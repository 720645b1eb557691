// Parts of the attention kernels that do not depend on the instruction set: visible keys, scratch memory, and
// distribution of work among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "esp/kernel/attention.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {

// Number of queries or keys in a tile. In the GEMM of a tile, one operand (64·64 floats) stays in a 32 KiB L1 cache
// while the other operand is streamed.
constexpr int64_t kAttentionTile = 64;

constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

inline int64_t num_tiles(int64_t tokens) {
  return (tokens + kAttentionTile - 1) / kAttentionTile;
}

// Number of keys visible to query i of sequence b. The visible keys are the first ones of the sequence.
inline int64_t visible_keys(const AttentionShape& s, int64_t b, int64_t i) {
  int64_t n = s.key_lengths ? s.key_lengths[b] : s.num_keys;
  if (s.causal) n = std::min(n, i + s.causal_offset + 1);
  return std::clamp<int64_t>(n, 0, s.num_keys);
}

// The first query to which key j is visible, ignoring the sequence length.
inline int64_t first_query(const AttentionShape& s, int64_t j) {
  return s.causal ? std::max<int64_t>(0, j - s.causal_offset) : 0;
}

void check_attention(const AttentionShape& shape);

// For at most this number of queries, forward uses the decoding kernel, which does not pack keys and values.
constexpr int64_t kFewQueries = 4;
void attention_decode(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                      DType dtype, const device::Stream& stream);

// Scratch memory of the calling thread. It is kept between calls and grows if a call needs more.
void* attention_scratch(size_t bytes);

// Divides a memory block into arrays, each aligned to a cache line.
template <typename A>
class ScratchAllocator {
 public:
  explicit ScratchAllocator(A* memory) : next_(memory) {}
  A* allocate(int64_t count) {
    A* part = next_;
    next_ += rounded(count);
    return part;
  }
  static int64_t rounded(int64_t count) { return (count + kLine - 1) / kLine * kLine; }

 private:
  static constexpr int64_t kLine = 64 / sizeof(A);
  A* next_;
};

// Splits the blocks [0, count) into consecutive ranges of about equal total cost(block), one per worker, and runs
// f(worker, begin, end) for each. The ranges depend on the number of threads, so the blocks must be independent.
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
