// Long context: attention over T tokens on c ranks needs 1/c of the memory of one rank. The MemoryAccount of each rank
// measures the memory.
#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "esp/parallel/cp/ring.h"
#include "esp/parallel/cp/testing.h"
#include "esp/parallel/cp/ulysses.h"

namespace esp::parallel {
namespace {

// Largest peak memory of any rank in forward and backward, including the input, the output and their gradients.
uint64_t peak_of(const AttentionCase& p, int num_ranks, Attention attention, ContextLayout layout) {
  std::vector<AttentionTrace> traces;
  attend(p, num_ranks, attention, layout, &traces);
  uint64_t most = 0;
  for (const AttentionTrace& trace : traces) most = std::max(most, trace.peak_bytes);
  return most;
}

// The sequence has 4096 tokens, or 32768 if ESPALIER_TEST_LONG is set. The memory ratios depend little on the length,
// because the workspaces of the kernels have a fixed size.
AttentionCase long_context(int64_t heads) {
  AttentionCase p = problem(std::getenv("ESPALIER_TEST_LONG") ? 32768 : 4096, heads, heads, true, DType::f32);
  p.B = 1;
  p.options.head_dim = 16;
  return p;
}

TEST(LongContext, RingMemoryShrinksWithNumberOfRanks) {
  const AttentionCase p = long_context(1);
  const auto two = static_cast<double>(peak_of(p, 2, ring_attention, ContextLayout::zigzag));
  const auto four = static_cast<double>(peak_of(p, 4, ring_attention, ContextLayout::zigzag));
  EXPECT_NEAR(four / two, 0.5, 0.01);
  const auto one = static_cast<double>(peak_of(p, 0, nullptr, ContextLayout::contiguous));
  // Four ranks need a quarter of the memory plus the ring buffers.
  EXPECT_LT(four / one, 0.5);
  EXPECT_GT(four / one, 0.25);
}

}  // namespace
}  // namespace esp::parallel
