#include "esp/plan/suggestions.h"

#include <gtest/gtest.h>

#include "esp/plan/catalog.h"

namespace esp::plan {
namespace {

TEST(Suggestions, ListsChangesThatFitFastestFirst) {
  const Catalog& catalog = built_in_catalog();
  const ModelShape shape = catalog.find_model("llama2-7b")->shape;
  const Cluster cluster = make_cluster(catalog, catalog.processor("A100"), {8, 8, 0, 0});
  Policy policy;  // needs 121 GB per rank: 18 bytes per parameter, not sharded
  policy.dp = 8;
  policy.global_batch = 64;
  ASSERT_GT(memory_of(shape, cluster, policy).total(), cluster.processor.memory_bytes);
  const std::vector<Suggestion> all = suggestions(shape, cluster, policy);
  ASSERT_FALSE(all.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_LE(memory_of(shape, cluster, all[i].policy).total(), cluster.processor.memory_bytes) << all[i].change;
    EXPECT_FALSE(policy_error(shape, cluster, all[i].policy)) << all[i].change;
    EXPECT_EQ(all[i].policy.world(), 8);
    if (i > 0) {
      EXPECT_GE(all[i].step_s, all[i - 1].step_s);
    }
  }
}

TEST(Suggestions, ListIsEmptyIfNoChangeFits) {
  const Catalog& catalog = built_in_catalog();
  const Cluster one = make_cluster(catalog, catalog.processor("V100"), {1, 1, 0, 0});
  Policy policy;
  policy.precision = "fp16";
  EXPECT_TRUE(suggestions(catalog.find_model("gpt-1t")->shape, one, policy).empty());
}

}  // namespace
}  // namespace esp::plan
