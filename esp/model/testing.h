// A model with all it needs to run, for tests.
#pragma once

#include <memory>

#include "esp/base/rng.h"
#include "esp/model/model.h"

namespace esp::model {

struct TestModel {
  device::MemoryAccount account;
  device::Pool pool{account};
  device::ThreadPool threads;
  tensor::Context context;
  autograd::Tape tape;
  std::unique_ptr<Model> model;

  explicit TestModel(const ModelConfig& config, DType dtype, int num_threads = 1, uint64_t seed = 1)
      : threads(num_threads), context{{{}, &threads, nullptr}, &pool}, tape(context), model(make_model(config)) {
    model->parameters().materialize(context, dtype, true);
    model->parameters().initialise(seed, context.stream);
  }

  nn::Pass pass() {
    nn::Pass pass;
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

  Batch random_batch(int64_t B, int64_t T, uint64_t seed = 3) {
    const ModelConfig& c = model->config();
    Batch batch;
    batch.inputs = ids({B, T}, c.vocab, seed);
    batch.targets = ids(c.num_classes > 0 ? tensor::Shape{B} : tensor::Shape{B, T},
                        c.num_classes > 0 ? c.num_classes : c.vocab, seed + 1);
    if (c.arch == "t5") batch.decoder_inputs = ids({B, T}, c.vocab, seed + 2);
    if (c.type_vocab > 0) batch.segments = ids({B, T}, c.type_vocab, seed + 3);
    return batch;
  }
};

}  // namespace esp::model
