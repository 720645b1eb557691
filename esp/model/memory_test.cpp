// Tests how much activation memory a step keeps for backward, and that later steps allocate no memory.
#include <gtest/gtest.h>

#include "esp/base/allocation_counter.h"
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
  state = {};  // now only the tape holds activations
  const uint64_t kept = t.account.use(device::MemoryCategory::activation).current;
  t.tape.clear();
  return kept;
}

TEST(ModelMemory, FullRecomputationKeepsOneInputPerLayer) {
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

// A block keeps these tensors, in multiples of the size of the residual stream: two residual sums, two norm outputs,
// qkv (3), the attention output and two MLP activations (4 each). It also keeps the small statistics of norms and
// attention. No tensor has a size quadratic in T, and no tensor is kept twice.
TEST(ModelMemory, KeepsOnlyWhatBackwardReads) {
  const ModelConfig config = preset("gpt-tiny").config;
  const uint64_t rows = B * T, C = 32, H = 2;
  const uint64_t per_layer =
      (kept_bytes(config, 6, nn::RecomputeMode::none) - kept_bytes(config, 2, nn::RecomputeMode::none)) / 4;
  const uint64_t widths = 2 /*sums*/ + 2 /*normed*/ + 3 /*qkv*/ + 1 /*attention*/ + 4 + 4 /*mlp*/;
  EXPECT_EQ(per_layer, rows * C * widths * 4 + rows * (2 * 2 + H) * 4);
}

TEST(ModelMemory, StepsAfterTheFirstAllocateNothing) {
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
      const uint64_t before = total_allocations, reserved = t.pool.reserved_bytes();
      for (int i = 0; i < 3; ++i) step();
      EXPECT_EQ(total_allocations - before, 0) << name << static_cast<int>(recompute);
      EXPECT_EQ(t.pool.reserved_bytes(), reserved);
    }
#else
  GTEST_SKIP() << "a build with a sanitizer does not count allocations";
#endif
}

}  // namespace
}  // namespace esp::model
