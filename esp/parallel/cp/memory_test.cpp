// Long context: by each rank's memory account, attention over T tokens on c ranks takes 1/c of what it takes on one.
#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "esp/parallel/cp/ring.h"
#include "esp/parallel/cp/testing.h"
#include "esp/parallel/cp/ulysses.h"

namespace esp::parallel {
namespace {

// Forward and backward, the input, the output and their gradients included.
uint64_t peak_of(const AttentionCase& p, int num_ranks, Attention attention, ContextLayout layout) {
  std::vector<AttentionTrace> traces;
  attend(p, num_ranks, attention, layout, &traces);
  uint64_t most = 0;
  for (const AttentionTrace& trace : traces) most = std::max(most, trace.peak_bytes);
  return most;
}

// Shares hardly change with the length (kernels have some room of their own); the long form is what they are for.
AttentionCase long_context(int64_t heads) {
  AttentionCase p = problem(std::getenv("ESPALIER_TEST_LONG") ? 32768 : 4096, heads, heads, true, DType::f32);
  p.B = 1;
  p.options.head_dim = 16;
  return p;
}

TEST(LongContext, RingMemoryScalesWithRanks) {
  const AttentionCase p = long_context(1);
  const auto two = static_cast<double>(peak_of(p, 2, ring_attention, ContextLayout::zigzag));
  const auto four = static_cast<double>(peak_of(p, 4, ring_attention, ContextLayout::zigzag));
  EXPECT_NEAR(four / two, 0.5, 0.01);
  const auto one = static_cast<double>(peak_of(p, 0, nullptr, ContextLayout::contiguous));
  // The travelling buffers come on top of a quarter.
  EXPECT_LT(four / one, 0.5);
  EXPECT_GT(four / one, 0.25);
}

}  // namespace
}  // namespace esp::parallel
