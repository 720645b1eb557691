// Properties of every model.
#include "esp/model/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "esp/autograd/testing.h"
#include "esp/base/error.h"
#include "esp/model/testing.h"

namespace esp::model {
namespace {

constexpr const char* kTiny[] = {"gpt-tiny", "llama-tiny", "bert-tiny", "bert-tiny-classifier", "t5-tiny"};

int64_t counted(const ModelBatch& batch) {
  int64_t count = 0;
  for (const int32_t target : batch.targets.span<int32_t>()) count += target >= 0;
  return count;
}

double mean_loss(TestModel& t, const ModelBatch& batch) {
  const autograd::NoGradGuard quiet(t.tape);
  nn::ForwardContext pass = t.pass();
  return tensor::item(t.model->forward(pass, batch, 1).total.value()) / static_cast<double>(counted(batch));
}

TEST(Model, InitialLossIsNearLogOfClassCount) {
  for (const char* name : kTiny) {
    TestModel t(preset(name).config, DType::f32);
    const ModelConfig& c = t.model->config();
    EXPECT_NEAR(mean_loss(t, t.random_batch(4, 16)), std::log(c.num_classes ? c.num_classes : c.vocab), 0.1) << name;
  }
}

TEST(Model, OverfitsOneBatch) {
  for (const char* name : kTiny) {
    TestModel t(preset(name).config, DType::f32);
    const ModelBatch batch = t.random_batch(2, 12);
    const double before = mean_loss(t, batch);
    TestAdam adam(t);
    for (int step = 0; step < 30; ++step) adam.step(batch, 3e-3);
    EXPECT_LT(mean_loss(t, batch), 0.6 * before) << name;
  }
}

TEST(Model, LossInEveryPrecisionIsCloseToF64) {
  for (const char* name : kTiny) {
    ModelConfig config = preset(name).config;
    config.init_std = 0.1;
    TestModel exact(config, DType::f64);
    const double loss = mean_loss(exact, exact.random_batch(2, 16));
    for (const auto& [dtype, tolerance] :
         {std::pair{DType::f32, 1e-5}, std::pair{DType::f16, 5e-3}, std::pair{DType::bf16, 2e-2}}) {
      TestModel t(config, dtype);
      EXPECT_NEAR(mean_loss(t, t.random_batch(2, 16)) / loss, 1, tolerance) << name << name_of(dtype);
    }
  }
}

TEST(Model, GradientsScaleWithLossScale) {
  TestModel t(preset("gpt-tiny").config, DType::f64), scaled(preset("gpt-tiny").config, DType::f64);
  for (auto& [rig, scale] : {std::pair<TestModel&, double>{t, 1}, std::pair<TestModel&, double>{scaled, 0.25}}) {
    nn::ForwardContext pass = rig.pass();
    autograd::backward(rig.tape, rig.model->forward(pass, rig.random_batch(2, 8), scale));
    rig.tape.clear();
  }
  const auto g = t.model->parameters().units()[1].grads.span<double>();
  const auto s = scaled.model->parameters().units()[1].grads.span<double>();
  for (size_t i = 0; i < g.size(); ++i) EXPECT_NEAR(s[i], g[i] * 0.25, 1e-12);
}

TEST(Model, CrossEntropyOfLogitsEqualsLoss) {
  for (const char* name : kTiny) {
    TestModel t(preset(name).config, DType::f64);
    const ModelBatch batch = t.random_batch(2, 10);
    nn::ForwardContext pass = t.pass();
    const tensor::Tensor logits = t.model->logits_of(pass, batch);
    const autograd::Loss loss = autograd::cross_entropy(t.tape, logits, batch.targets, 1);
    EXPECT_NEAR(tensor::item(loss.total.value()) / static_cast<double>(counted(batch)), mean_loss(t, batch), 1e-12);
    // Softmax of the logits is a distribution.
    double sum = 0, most = -1e300;
    for (int64_t v = 0; v < logits.dim(-1); ++v) most = std::max(most, tensor::item(logits, v));
    for (int64_t v = 0; v < logits.dim(-1); ++v) sum += std::exp(tensor::item(logits, v) - most);
    double total = 0;
    for (int64_t v = 0; v < logits.dim(-1); ++v) total += std::exp(tensor::item(logits, v) - most) / sum;
    EXPECT_NEAR(total, 1, 1e-14);
    t.tape.clear();
  }
}

std::vector<double> losses_of(TestModel& t, const ModelBatch& batch) {
  const autograd::NoGradGuard quiet(t.tape);
  nn::ForwardContext pass = t.pass();
  const tensor::Tensor losses = t.model->forward(pass, batch, 1).losses;
  std::vector<double> values;
  for (int64_t i = 0; i < losses.count(); ++i) values.push_back(tensor::item(losses, i));
  return values;
}

TEST(Model, DecodersAreCausal) {
  for (const char* name : {"gpt-tiny", "llama-tiny", "t5-tiny"}) {
    TestModel t(preset(name).config, DType::f32);
    ModelBatch batch = t.random_batch(1, 12);
    const auto before = losses_of(t, batch);
    tensor::Tensor& tokens = batch.decoder_inputs.defined() ? batch.decoder_inputs : batch.inputs;
    tokens.as<int32_t>()[7] ^= 1;
    const auto after = losses_of(t, batch);
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(before[i] == after[i], i < 7) << name << i;
  }
}

TEST(Model, EncodersIgnorePadding) {
  for (const char* name : {"bert-tiny", "bert-tiny-classifier", "t5-tiny"}) {
    TestModel t(preset(name).config, DType::f32);
    ModelBatch batch = t.random_batch(2, 12);
    batch.lengths = t.ids({2}, 1, 0);
    batch.lengths.as<int32_t>()[0] = 9;
    batch.lengths.as<int32_t>()[1] = 12;
    const bool per_token = t.model->config().arch == "bert" && t.model->config().num_classes == 0;
    const auto before = losses_of(t, batch);
    batch.inputs.as<int32_t>()[10] ^= 1;  // a padding token of the first sequence
    const auto after = losses_of(t, batch);
    for (size_t i = 0; i < before.size(); ++i) {
      if (per_token && i == 10) continue;
      EXPECT_EQ(before[i], after[i]) << name << i;
    }
    batch.inputs.as<int32_t>()[8] ^= 1;
    EXPECT_NE(losses_of(t, batch)[0], after[0]) << name;
  }
}

TEST(Model, HeadlessModelGivesHiddenStatesOnly) {
  ModelConfig config = preset("bert-tiny").config;
  config.headless = config.pooler = true;
  TestModel t(config, DType::f32);
  nn::ForwardContext pass = t.pass();
  const ModelBatch batch = t.random_batch(2, 8);
  EXPECT_EQ(t.model->hidden(pass, batch).x.shape(), (tensor::Shape{2, 8, 32}));
  EXPECT_THROW(t.model->logits_of(pass, batch), UsageError);
  t.tape.clear();
}

TEST(Model, RejectsIdsOutsideVocabulary) {
  TestModel t(preset("gpt-tiny").config, DType::f32);
  nn::ForwardContext pass = t.pass();
  ModelBatch batch = t.random_batch(2, 8);
  batch.inputs.as<int32_t>()[9] = 256;
  EXPECT_THROW(t.model->forward(pass, batch, 1), UsageError);
  EXPECT_THROW(t.model->logits_of(pass, batch), UsageError);
  batch.inputs.as<int32_t>()[9] = -1;  // only targets may be negative
  EXPECT_THROW(t.model->forward(pass, batch, 1), UsageError);
  batch.inputs.as<int32_t>()[9] = 255;
  batch.targets.as<int32_t>()[3] = 256;
  EXPECT_THROW(t.model->forward(pass, batch, 1), UsageError);
  batch.targets.as<int32_t>()[3] = -1;
  EXPECT_NO_THROW(t.model->forward(pass, batch, 1));
  t.tape.clear();
}

// Only masked tokens have a target; the others do not contribute to the loss.
TEST(Model, MaskedLossCountsMaskedTokensOnly) {
  TestModel t(preset("bert-tiny").config, DType::f32);
  ModelBatch batch = t.random_batch(2, 20);
  const auto all = losses_of(t, batch);
  double expected = 0;
  int64_t masked = 0;
  for (int64_t i = 0; i < 40; ++i) {
    if (i % 7 == 0) {
      expected += all[static_cast<size_t>(i)];
      ++masked;
    } else {
      batch.targets.as<int32_t>()[i] = -1;
    }
  }
  EXPECT_NEAR(mean_loss(t, batch), expected / static_cast<double>(masked), 1e-6);
}

}  // namespace
}  // namespace esp::model
