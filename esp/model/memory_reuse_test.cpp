// Memory reuse between operators: a tensor that backward does not read is freed after its last read in forward.
#include <gtest/gtest.h>

#include <cstring>

#include "esp/model/testing.h"

namespace esp::model {
namespace {

struct Seen {
  uint64_t peak = 0;  // peak activation bytes
  std::vector<float> losses;
};

Seen forward(const char* name, int64_t layers, bool keeps) {
  ModelConfig config = preset(name).config;
  config.layers = layers;
  TestModel t(config, DType::f32);
  const ModelBatch batch = t.random_batch(2, 24);
  t.tape.set_recording(keeps);
  nn::ForwardContext pass = t.pass();
  Seen seen;
  const autograd::Loss loss = t.model->forward(pass, batch, 1);
  const auto losses = loss.losses.span<float>();
  seen.losses.assign(losses.begin(), losses.end());
  seen.peak = t.account.use(device::MemoryCategory::activation).peak;
  t.tape.clear();
  return seen;
}

TEST(MemoryReuse, EvaluationMemoryIsIndependentOfLayerCount) {
  for (const char* name : {"gpt-tiny", "llama-tiny", "bert-tiny"}) {
    const Seen two = forward(name, 2, false), eight = forward(name, 8, false);
    const Seen kept_two = forward(name, 2, true), kept = forward(name, 8, true);
    EXPECT_EQ(eight.peak, two.peak) << name;
    EXPECT_LT(2 * eight.peak, kept.peak) << name;
    EXPECT_GT(kept.peak, 2 * kept_two.peak) << name;  // memory kept for backward grows with the number of layers
    EXPECT_EQ(eight.losses, kept.losses) << name;     // bit-identical losses
  }
}

}  // namespace
}  // namespace esp::model
