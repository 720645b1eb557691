// Mixture-of-experts models: gradients (with the router losses), recomputation, generation, shards.
#include <gtest/gtest.h>

#include <cstring>

#include "esp/autograd/testing.h"
#include "esp/base/error.h"
#include "esp/model/testing.h"
#include "esp/nn/moe/routing_report.h"

namespace esp::model {
namespace {

ModelConfig small(const char* preset_name) {
  ModelConfig config = preset(preset_name).config;
  config.dim = 8;
  config.ffn = 12;
  config.vocab = 11;
  config.seq_len = 6;
  config.init_std = 0.4;
  config.experts = 4;
  config.expert_every = 1;
  config.expert_aux = 0.3;
  config.expert_z = 0.1;
  config.shared_expert = 5;
  return config;
}

class Experts : public testing::TestWithParam<const char*> {};

TEST_P(Experts, GradientsMatchDifferencesWithRouterLosses) {
  const ModelConfig config = small(GetParam());
  TestModel t(config, DType::f64);
  const ModelBatch batch = t.random_batch(2, 5);
  nn::RoutingReport report;
  nn::ForwardContext pass = t.pass();
  pass.training = true;
  pass.router_scale = 0.05;
  pass.routing = &report;
  const double scale = 0.125;
  const auto value = [&] {
    const autograd::NoGradGuard quiet(t.tape);
    double sum = scale * tensor::item(t.model->forward(pass, batch, scale).total.value());
    for (const auto& layer : report.layers)
      sum += pass.router_scale * (config.expert_aux * layer.aux + config.expert_z * layer.z);
    return sum;
  };
  autograd::backward(t.tape, t.model->forward(pass, batch, scale));
  t.tape.clear();
  uint64_t stream = 0;
  for (nn::Parameter& p : t.model->parameters().all()) {
    std::vector<double> slopes, gradient;
    for (int64_t sample = 0; sample < std::min<int64_t>(p.count(), 12); ++sample) {
      const auto at = static_cast<int64_t>(random_bits(5, stream, static_cast<uint64_t>(sample)) %
                                           static_cast<uint64_t>(p.count()));
      const tensor::Tensor one = tensor::Tensor::borrow(p.weight.value.as<double>() + at, {1}, DType::f64);
      slopes.push_back(autograd::differences(one, value)[0]);
      gradient.push_back(p.weight.grad.as<double>()[at]);
    }
    ++stream;
    EXPECT_LT(autograd::distance(gradient, slopes), 1e-6) << p.name;
  }
}

TEST_P(Experts, RecomputationIsBitIdenticalToStoredActivations) {
  std::vector<std::vector<float>> grads;
  for (nn::RecomputeMode how : {nn::RecomputeMode::none, nn::RecomputeMode::selective, nn::RecomputeMode::full}) {
    TestModel t(small(GetParam()), DType::f32);
    nn::ForwardContext pass = t.pass();
    pass.training = true;
    pass.router_scale = 0.05;
    pass.recompute = how;
    autograd::backward(t.tape, t.model->forward(pass, t.random_batch(2, 5), 0.1));
    t.tape.clear();
    std::vector<float>& all = grads.emplace_back();
    for (const auto& unit : t.model->parameters().units())
      all.insert(all.end(), unit.grads.as<float>(), unit.grads.as<float>() + unit.count);
  }
  EXPECT_EQ(grads[0], grads[1]);
  EXPECT_EQ(grads[0], grads[2]);
}

TEST_P(Experts, IncrementalDecodingMatchesWholeSequence) {
  TestModel t(small(GetParam()), DType::f64);
  const ModelBatch batch = t.random_batch(1, 6);
  nn::ForwardContext pass = t.pass();
  const tensor::Tensor want = t.model->logits_of(pass, batch);
  KvCache cache = t.model->make_cache(t.context, 1, 6);
  for (int64_t i = 0; i < 6; ++i) {
    const tensor::Tensor id = tensor::Tensor::borrow(batch.inputs.as<int32_t>() + i, {1, 1}, DType::i32);
    const tensor::Tensor logits = t.model->extend(pass, id, cache);
    for (int64_t v = 0; v < 11; ++v)
      EXPECT_NEAR(logits.as<double>()[v], want.as<double>()[i * 11 + v], 1e-12) << i << ' ' << v;
  }
}

TEST_P(Experts, ParameterCountsMatchBuiltModel) {
  for (int64_t every : {1, 2})
    for (int64_t shared : {0, 5}) {
      ModelConfig config = small(GetParam());
      config.expert_every = every;
      config.shared_expert = shared;
      EXPECT_EQ(parameter_count(config), make_model(config)->parameters().count());
    }
}

TEST_P(Experts, ShardsAreInitialisedLikeWholeModel) {
  const ModelConfig config = small(GetParam());
  TestModel whole(config, DType::f32);
  int64_t held = 0;
  for (int r = 0; r < 3; ++r) {
    ModelPart part;
    part.shards.experts = {r, 3};
    const auto model = make_model(config, part);
    nn::ParameterList* experts = model->experts();
    ASSERT_TRUE(experts);
    EXPECT_EQ(experts->units()[0].name, "blocks.0");
    held += experts->count();
    if (r == 0) held += model->parameters().count();
    experts->materialize(whole.context, DType::f32, false);
    experts->initialise(1, whole.context.stream);
    for (const nn::Parameter& p : experts->all()) {
      const tensor::Tensor& want = whole.model->parameters().find(p.name).weight.value;
      EXPECT_EQ(std::memcmp(p.weight.value.data(), want.data(), want.bytes()), 0) << p.name;
    }
  }
  EXPECT_EQ(held, parameter_count(config));
}

INSTANTIATE_TEST_SUITE_P(Archs, Experts, testing::Values("gpt-tiny", "llama-tiny"),
                         [](const auto& arch) { return std::string(arch.param).substr(0, 3); });

TEST(ExpertSettings, InvalidValuesAreRejected) {
  for (const auto& [change, word] : std::vector<std::pair<void (*)(ModelConfig&), const char*>>{
           {[](ModelConfig& c) { c.experts_per_token = 5; }, "moe.top_k"},
           {[](ModelConfig& c) { c.expert_every = 3; }, "moe.every"},
           {[](ModelConfig& c) { c.expert_capacity = -1; }, "moe.capacity_factor"},
           {[](ModelConfig& c) { c.experts = 0; }, "moe.shared"}}) {
    ModelConfig config = small("gpt-tiny");
    change(config);
    try {
      config.check();
      ADD_FAILURE() << word;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace esp::model
