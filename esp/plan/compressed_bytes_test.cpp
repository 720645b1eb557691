#include "esp/plan/compressed_bytes.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/plan/catalog.h"
#include "esp/plan/estimate.h"

namespace esp::plan {
namespace {

TEST(CompressedBytes, MatchBytesPerValueOfEachCompressor) {
  ModelShape shape;
  shape.hidden = 1000;
  shape.ffn = 4000;
  EXPECT_EQ(compressed_value_bytes("none", shape, 2), 2);
  EXPECT_EQ(compressed_value_bytes("", shape, 4), 4);
  EXPECT_EQ(compressed_value_bytes("bf16", shape, 4), 2);
  EXPECT_EQ(compressed_value_bytes("int8:128", shape, 4), 1 + 4.0 / 128);
  EXPECT_EQ(compressed_value_bytes("int4", shape, 4), 0.5 + 4.0 / 128);
  EXPECT_EQ(compressed_value_bytes("sign", shape, 4), 0.125);
  EXPECT_DOUBLE_EQ(compressed_value_bytes("topk:0.05", shape, 4), 0.4);
  EXPECT_DOUBLE_EQ(compressed_value_bytes("randomk:2%", shape, 4), 0.08);
  EXPECT_EQ(compressed_value_bytes("qsgd:16:512", shape, 4), 0.75 + 4.0 / 512);
  EXPECT_EQ(compressed_value_bytes("random:-1,0,1", shape, 4), 0.25);
  EXPECT_EQ(compressed_value_bytes("random", shape, 4), 1.5);
  EXPECT_DOUBLE_EQ(compressed_value_bytes("powersgd:2", shape, 4), 8.0 * 5000 / 4e6);
  EXPECT_THROW(compressed_value_bytes("topkk", shape, 4), UsageError);
}

TEST(CompressedBytes, CompressionReducesTrafficBetweenReplicas) {
  const Catalog& catalog = built_in_catalog();
  const ModelShape shape = catalog.find_model("llama2-7b")->shape;
  const Cluster cluster = make_cluster(catalog, catalog.processor("A100"), {16, 8, 100, 0});
  Policy policy;
  policy.dp = policy.global_batch = 16;
  policy.gradients_fp32 = false;
  const auto sent = [&](const char* compress) {
    policy.compress = compress;
    double bytes = 0;
    for (const GroupTraffic& t : estimate(shape, cluster, policy).traffic) bytes += t.group == "dp" ? t.bytes : 0;
    return bytes;
  };
  EXPECT_GT(sent("none"), 0);
  EXPECT_NEAR(sent("sign") / sent("none"), 1.0 / 16, 1e-9);
  policy.compress = "none";
  const double plain = estimate(shape, cluster, policy).step_s;
  policy.compress = "sign";
  EXPECT_LT(estimate(shape, cluster, policy).step_s, plain);
}

}  // namespace
}  // namespace esp::plan
