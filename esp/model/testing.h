// A model with everything needed to run it, for tests.
#pragma once

#include <memory>

#include "esp/base/rng.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/model/model.h"

namespace esp::model {

// A tiny LLaMA with scaled rotary angles. Its heads are 8 wide, so that some frequencies lie within the ramp of the
// scaling.
inline ModelConfig scaled_llama(kernel::RopeScaling kind) {
  ModelConfig config = preset("llama-tiny").config;
  config.rope.scaling = kind;
  config.rope.factor = 4;
  if (kind != kernel::RopeScaling::linear) config.rope.original_seq_len = 64;
  if (kind == kernel::RopeScaling::yarn) config.rope.beta_fast = 8;
  return config;
}

struct TestModel {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads;
  tensor::Context context;
  autograd::Tape tape;
  std::unique_ptr<Model> model;

  explicit TestModel(const ModelConfig& config, DType dtype, int num_threads = 1, uint64_t seed = 1)
      : threads(num_threads), context{{{}, &threads, nullptr}, &pool}, tape(context), model(make_model(config)) {
    model->parameters().materialize(context, dtype, true);
    model->parameters().initialise(seed, context.stream);
  }

  nn::ForwardContext pass() {
    nn::ForwardContext pass;
    pass.tape = &tape;
    pass.seed = 7;
    return pass;
  }

  tensor::Tensor ids(const tensor::Shape& shape, int64_t below, uint64_t seed) {
    tensor::Tensor t = tensor::empty(context, shape, DType::i32, device::MemoryCategory::other);
    for (int64_t i = 0; i < t.count(); ++i)
      t.as<int32_t>()[i] =
          static_cast<int32_t>(random_bits(seed, 99, static_cast<uint64_t>(i)) % static_cast<uint64_t>(below));
    return t;
  }

  ModelBatch random_batch(int64_t B, int64_t T, uint64_t seed = 3) {
    const ModelConfig& c = model->config();
    ModelBatch batch;
    batch.inputs = ids({B, T}, c.vocab, seed);
    batch.targets = ids(c.num_classes > 0 ? tensor::Shape{B} : tensor::Shape{B, T},
                        c.num_classes > 0 ? c.num_classes : c.vocab, seed + 1);
    if (c.arch == "t5") batch.decoder_inputs = ids({B, T}, c.vocab, seed + 2);
    if (c.type_vocab > 0) batch.segments = ids({B, T}, c.type_vocab, seed + 3);
    return batch;
  }
};

// Adam in fp32 over the units of a TestModel.
class TestAdam {
 public:
  explicit TestAdam(TestModel& t) : t_(t) {
    for (const auto& unit : t.model->parameters().units())
      for (auto* list : {&m_, &v_})
        list->push_back(tensor::zeros(t.context, {unit.count}, DType::f32, device::MemoryCategory::optimizer));
  }

  void step(const ModelBatch& batch, double lr) {
    int64_t counted = 0;
    for (const int32_t target : batch.targets.span<int32_t>()) counted += target >= 0;
    nn::ForwardContext pass = t_.pass();
    t_.model->parameters().zero_gradients(t_.context.stream);
    autograd::backward(t_.tape, t_.model->forward(pass, batch, 1.0 / static_cast<double>(counted)));
    t_.tape.clear();
    kernel::AdamStep adam;
    adam.lr = lr;
    adam.t = ++steps_;
    for (size_t i = 0; i < m_.size(); ++i) {
      const auto& unit = t_.model->parameters().units()[i];
      kernel::adam_step(
          {unit.values.data(), nullptr, unit.grads.data(), m_[i].data(), v_[i].data(), unit.count, DType::f32}, adam,
          t_.context.stream);
    }
  }

 private:
  TestModel& t_;
  std::vector<tensor::Tensor> m_, v_;
  int64_t steps_ = 0;
};

}  // namespace esp::model
