#include "esp/sync/prefetch_window/access_plan.h"

#include <gtest/gtest.h>

namespace esp::sync {
namespace {

// GPT-2 sizes in bf16, a link of 12 GB/s, and compute of 10 TFLOP/s.
constexpr int64_t kVocab = 50257, kDim = 768, kTokens = 1024;
constexpr HostAccessRates kLink{12e6};

AccessedLayer lookup(int64_t tokens) {
  return {uint64_t{kVocab} * kDim * 2, touched_by_lookup(tokens, kDim, 2), 0.01};
}
AccessedLayer gemm(int64_t rows, int64_t tile) {
  const uint64_t bytes = 4 * uint64_t{kDim} * kDim * 2;
  return {bytes, touched_by_gemm(rows, tile, bytes), 2.0 * static_cast<double>(rows) * 4 * kDim * kDim / 10e9};
}

TEST(AccessPlan, PrefersDirectAccessForEmbeddingsAndFetchForDenseLayers) {
  EXPECT_TRUE(prefers_direct_access(lookup(kTokens), kLink));
  EXPECT_EQ(lookup(kTokens).touched_bytes, 1024u * 768 * 2);
  EXPECT_FALSE(prefers_direct_access(gemm(kTokens, 128), kLink));
  EXPECT_FALSE(
      // each weight is read once: direct access saves nothing, and a fetch could start earlier
      prefers_direct_access(gemm(kTokens, kTokens), kLink));
}

TEST(AccessPlan, FetchesATableWithMoreReadsThanRows) {
  EXPECT_TRUE(prefers_direct_access(lookup(kVocab - 1), kLink));
  EXPECT_FALSE(prefers_direct_access(lookup(kVocab), kLink));
}

TEST(AccessPlan, ComparesTheTimesOfFetchAndDirectAccess) {
  const AccessedLayer layer{1200, 600, 5};
  const HostAccessRates link{100};
  EXPECT_EQ(fetched_ms(layer, link), 17);
  EXPECT_EQ(direct_ms(layer, link), 11);
}

}  // namespace
}  // namespace esp::sync
