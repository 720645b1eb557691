// Bit identity: a training step gives the same bits with recomputation, with another number of threads, when the parts
// of the model run separately, and when the batch is split.
#include <gtest/gtest.h>

#include <cstring>

#include "esp/model/testing.h"

namespace esp::model {
namespace {

constexpr const char* kTiny[] = {"gpt-tiny", "llama-tiny", "bert-tiny", "bert-tiny-classifier", "t5-tiny"};

ModelConfig with_dropout(const char* name) {
  ModelConfig config = preset(name).config;
  config.dropout = 0.25;
  return config;
}

struct Result {
  std::vector<char> loss, gradients;
  bool operator==(const Result&) const = default;
};

std::vector<char> bytes_of(const tensor::Tensor& x) {
  const auto* data = static_cast<const char*>(x.data());
  return {data, data + x.bytes()};
}

Result run(TestModel& t, nn::RecomputeMode recompute, bool in_parts = false, bool split = false, int64_t T = 24) {
  nn::ForwardContext pass = t.pass();
  pass.training = true;
  pass.step = 12;
  pass.recompute = recompute;
  const ModelBatch batch = t.random_batch(3, T);
  autograd::Loss loss;
  if (in_parts) {
    HiddenStates state = t.model->stem(pass, batch);
    for (int i = 0; i < t.model->num_blocks(); ++i) state = t.model->blocks(i, i + 1, pass, state, batch);
    loss = t.model->loss(pass, state, batch, 0.01);
  } else {
    loss = t.model->forward(pass, batch, 0.01);
  }
  if (split) {
    autograd::seed(t.tape, loss);
    t.tape.backward_inputs();
    t.tape.backward_weights();
  } else {
    autograd::backward(t.tape, loss);
  }
  t.tape.clear();
  Result result;
  result.loss = bytes_of(loss.losses);
  for (const auto& unit : t.model->parameters().units()) {
    const auto bytes = bytes_of(unit.grads);
    result.gradients.insert(result.gradients.end(), bytes.begin(), bytes.end());
  }
  return result;
}

TEST(BitIdentity, RecomputationMatchesStoredActivations) {
  for (const char* name : kTiny)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      TestModel kept(with_dropout(name), dtype), selective(with_dropout(name), dtype), full(with_dropout(name), dtype);
      const Result result = run(kept, nn::RecomputeMode::none);
      EXPECT_EQ(result, run(selective, nn::RecomputeMode::selective)) << name << name_of(dtype);
      EXPECT_EQ(result, run(full, nn::RecomputeMode::full)) << name << name_of(dtype);
    }
}

TEST(BitIdentity, SeparatelyRunPartsMatchWholeModel) {
  for (const char* name : kTiny)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      TestModel whole(with_dropout(name), dtype), parts(with_dropout(name), dtype), split(with_dropout(name), dtype);
      const Result result = run(whole, nn::RecomputeMode::none);
      EXPECT_EQ(result, run(parts, nn::RecomputeMode::none, true)) << name << name_of(dtype);
      EXPECT_EQ(result, run(split, nn::RecomputeMode::none, false, true)) << name << name_of(dtype);
    }
}

TEST(BitIdentity, TwoThreadsMatchOneThread) {
  for (const char* name : kTiny)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      TestModel one(with_dropout(name), dtype, 1), two(with_dropout(name), dtype, 2);
      EXPECT_EQ(run(one, nn::RecomputeMode::none), run(two, nn::RecomputeMode::none)) << name << name_of(dtype);
    }
}

// At these sizes every kernel has several tiles, some of them partial.
TEST(BitIdentity, TwoThreadsMatchOneThreadAtLargerSizes) {
  for (const char* name : {"gpt-6x384", "llama-1.1b"}) {
    ModelConfig config = preset(name).config;
    config.layers = 1;
    config.dim = 192;
    config.heads = 6;
    config.kv_heads = config.kv_heads ? 2 : 0;
    config.ffn = 500;
    config.vocab = 1003;
    config.seq_len = 256;
    config.dropout = 0.1;
    TestModel one(config, DType::f32, 1), two(config, DType::f32, 2), again(config, DType::f32, 2);
    const Result result = run(one, nn::RecomputeMode::none, false, false, 201);
    EXPECT_EQ(result, run(two, nn::RecomputeMode::none, false, false, 201)) << name;
    EXPECT_EQ(result, run(again, nn::RecomputeMode::full, true, true, 201)) << name;
  }
}

// Sequence 2 of a batch of 3, run alone, has the same dropout masks and therefore the same losses.
TEST(BitIdentity, LossesOfSequenceDoNotDependOnOtherSequencesInBatch) {
  for (const char* name : kTiny) {
    TestModel t(with_dropout(name), DType::f32);
    const ModelBatch batch = t.random_batch(3, 24);
    nn::ForwardContext pass = t.pass();
    pass.training = true;
    const auto together = bytes_of(t.model->forward(pass, batch, 1).losses);
    ModelBatch last;
    last.inputs = batch.inputs.slice(2, 3);
    last.targets = batch.targets.slice(2, 3);
    if (batch.decoder_inputs.defined()) last.decoder_inputs = batch.decoder_inputs.slice(2, 3);
    if (batch.segments.defined()) last.segments = batch.segments.slice(2, 3);
    pass.first_sequence = 2;
    const auto alone = bytes_of(t.model->forward(pass, last, 1).losses);
    ASSERT_EQ(alone.size() * 3, together.size());
    EXPECT_EQ(std::memcmp(alone.data(), together.data() + 2 * alone.size(), alone.size()), 0) << name;
    t.tape.clear();
  }
}

// Dropout masks must differ between sites and steps; otherwise the tests above prove nothing.
TEST(BitIdentity, DropoutMasksDifferBetweenSteps) {
  TestModel t(with_dropout("gpt-tiny"), DType::f32);
  const ModelBatch batch = t.random_batch(3, 24);
  nn::ForwardContext pass = t.pass();
  const auto plain = bytes_of(t.model->forward(pass, batch, 1).losses);
  pass.training = true;
  const auto first = bytes_of(t.model->forward(pass, batch, 1).losses);
  pass.step = 1;
  const auto second = bytes_of(t.model->forward(pass, batch, 1).losses);
  EXPECT_NE(plain, first);
  EXPECT_NE(first, second);
  t.tape.clear();
}

}  // namespace
}  // namespace esp::model
