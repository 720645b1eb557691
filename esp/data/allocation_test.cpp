// After the first batch of a shape, no objective allocates memory.
#include <gtest/gtest.h>

#include <numeric>

#include "esp/base/allocation_counter.h"
#include "esp/data/objective.h"

namespace esp::data {
namespace {

TEST(Allocation, ObjectivesAllocateOnlyInFirstBatch) {
#if ESP_COUNTS_ALLOCATIONS
  std::vector<int32_t> tokens(10'000);
  std::iota(tokens.begin(), tokens.end(), 0);
  TokenSource source;
  source.add(std::move(tokens), "counting");
  std::unique_ptr<Objective> objectives[] = {
      make_next_token(source, {.T = 32}),
      make_masked_token(source, {.T = 32, .vocab = 10'000, .mask = 3}),
      make_span_corruption(source, {.T = 32, .vocab = 10'100, .text_vocab = 10'000}),
      make_synthetic_classification({}),
  };
  for (const auto& objective : objectives) {
    Batch batch;
    fill_batch(*objective, 0, 8, batch);
    uint64_t before = thread_allocations;
    for (uint64_t step = 1; step < 50; ++step) fill_batch(*objective, step * 8, 8, batch);
    EXPECT_EQ(thread_allocations, before);
  }
#else
  GTEST_SKIP() << "sanitizers replace the allocator, so allocations cannot be counted";
#endif
}

}  // namespace
}  // namespace esp::data
