// Activation memory kept by a step, and allocations.
#include <gtest/gtest.h>

#include "esp/base/counted_allocations.h"
#include "esp/model/testing.h"

namespace esp::model {
namespace {

constexpr int64_t B = 2, T = 32;

uint64_t kept_bytes(ModelConfig config, int64_t layers, nn::RecomputeMode recompute, DType dtype = DType::f32) {
  config.layers = layers;
  TestModel t(config, dtype);
  nn::ForwardContext pass = t.pass();
  pass.recompute = recompute;
  const ModelBatch batch = t.random_batch(B, T);
  HiddenStates state = t.model->hidden(pass, batch);
  state = {};  // what is left is what the tape holds
  const uint64_t kept = t.account.use(device::MemoryCategory::activation).current;
  t.tape.clear();
  return kept;
}

TEST(Memory, FullRecomputationKeepsOneInputPerLayer) {
  const uint64_t stream = static_cast<uint64_t>(B * T * 32 * 4);
  for (const char* name : {"gpt-tiny", "llama-tiny", "bert-tiny"}) {
    const ModelConfig config = preset(name).config;
    const auto per_layer = [&](nn::RecomputeMode r) {
      return (kept_bytes(config, 6, r) - kept_bytes(config, 2, r)) / 4;
    };
    EXPECT_EQ(per_layer(nn::RecomputeMode::full), stream) << name;
    EXPECT_GT(per_layer(nn::RecomputeMode::none), per_layer(nn::RecomputeMode::selective)) << name;
    EXPECT_GT(per_layer(nn::RecomputeMode::selective), stream) << name;
  }
}

// Two norm outputs, two sums, qkv, attention output (12 widths of the stream with the two of the MLP's four-fold ones)
// and the statistics: nothing quadratic in T, nothing twice.
TEST(Memory, KeepsOnlyWhatBackwardReads) {
  const ModelConfig config = preset("gpt-tiny").config;
  const uint64_t rows = B * T, C = 32, H = 2;
  const uint64_t per_layer =
      (kept_bytes(config, 6, nn::RecomputeMode::none) - kept_bytes(config, 2, nn::RecomputeMode::none)) / 4;
  const uint64_t widths = 2 /*sums*/ + 2 /*normed*/ + 3 /*qkv*/ + 1 /*attention*/ + 4 + 4 /*mlp*/;
  EXPECT_EQ(per_layer, rows * C * widths * 4 + rows * (2 * 2 + H) * 4);
}

TEST(Memory, NothingIsAllocatedAfterTheFirstStep) {
#if ESP_COUNTS_ALLOCATIONS
  for (const char* name : {"gpt-tiny", "llama-tiny", "bert-tiny", "bert-tiny-classifier", "t5-tiny"})
    for (const nn::RecomputeMode recompute :
         {nn::RecomputeMode::none, nn::RecomputeMode::selective, nn::RecomputeMode::full}) {
      ModelConfig config = preset(name).config;
      config.dropout = 0.1;
      TestModel t(config, DType::f32, 2);
      const ModelBatch batch = t.random_batch(B, T);
      const auto step = [&] {
        nn::ForwardContext pass = t.pass();
        pass.training = true;
        pass.recompute = recompute;
        t.model->parameters().zero_gradients(t.context.stream);
        autograd::backward(t.tape, t.model->forward(pass, batch, 0.1));
        t.tape.clear();
      };
      for (int i = 0; i < 2; ++i) step();
      const uint64_t before = allocations_everywhere, reserved = t.pool.reserved_bytes();
      for (int i = 0; i < 3; ++i) step();
      EXPECT_EQ(allocations_everywhere - before, 0) << name << static_cast<int>(recompute);
      EXPECT_EQ(t.pool.reserved_bytes(), reserved);
    }
#else
  GTEST_SKIP() << "under a sanitizer allocations are not ours to count";
#endif
}

}  // namespace
}  // namespace esp::model
