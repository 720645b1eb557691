// Compares the gradients of tiny models with central differences in fp64, for some elements of every parameter.
#include <gtest/gtest.h>

#include "esp/autograd/testing.h"
#include "esp/model/testing.h"

namespace esp::model {
namespace {

ModelConfig small(ModelConfig config) {
  config.dim = 8;
  config.ffn = 12;
  config.vocab = 11;
  config.seq_len = 6;
  config.init_std = 0.4;  // large weights, so that the models are far from linear
  config.norm_eps = 1e-5;
  config.dropout = 0.2;
  return config;
}

void expect_gradients_of_differences(const ModelConfig& config) {
  TestModel t(config, DType::f64);
  // Norms and biases get random values too, because their initial values are constants.
  uint64_t stream = 0;
  for (nn::Parameter& p : t.model->parameters().all())
    if (p.init.kind != nn::Init::Distribution::normal)
      kernel::fill_normal(p.weight.value.data(), p.init.kind == nn::Init::Distribution::one ? 1 : 0, 0.3, 77, stream++,
                          0, p.count(), DType::f64, t.context.stream);
  ModelBatch batch = t.random_batch(2, 5);
  batch.lengths = t.ids({2}, 1, 0);
  batch.lengths.as<int32_t>()[0] = 5;
  batch.lengths.as<int32_t>()[1] = 3;
  batch.targets.as<int32_t>()[1] = -1;
  nn::ForwardContext pass = t.pass();
  pass.training = true;
  const double scale = 0.125;
  const auto value = [&] {
    const autograd::NoGradGuard quiet(t.tape);
    return scale * tensor::item(t.model->forward(pass, batch, scale).total.value());
  };
  autograd::backward(t.tape, t.model->forward(pass, batch, scale));
  t.tape.clear();

  for (nn::Parameter& p : t.model->parameters().all()) {
    std::vector<double> slopes, gradient;
    for (int64_t sample = 0; sample < std::min<int64_t>(p.count(), 24); ++sample) {
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

class ModelGradients : public testing::TestWithParam<const char*> {};

TEST_P(ModelGradients, MatchFiniteDifferences) {
  expect_gradients_of_differences(small(preset(GetParam()).config));
}

INSTANTIATE_TEST_SUITE_P(Archs, ModelGradients,
                         testing::Values("gpt-tiny", "llama-tiny", "bert-tiny", "bert-tiny-classifier", "t5-tiny"),
                         [](const auto& arch) {
                           std::string name = arch.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(ScaledRotary, GradientsMatchFiniteDifferences) {
  using kernel::RopeScaling;
  for (const RopeScaling kind : {RopeScaling::linear, RopeScaling::yarn, RopeScaling::llama3}) {
    ModelConfig config = small(scaled_llama(kind));
    // one head of width 8, so that some of its frequencies lie within the ramp of the rotary scaling
    config.heads = config.kv_heads = 1;
    expect_gradients_of_differences(config);
  }
}

}  // namespace
}  // namespace esp::model
