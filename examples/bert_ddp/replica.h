// One rank's copy of the model, and the step that keeps all copies equal.
//
// Every rank builds the same two-layer BERT classifier, takes rank 0's parameters, and then repeats: forward and
// backward on its own share of the batch, an average of the gradients around the ring, the same Adam step. Copies that
// were equal bit for bit stay so, because the ring gives every rank the same bits. One thread; the communicator is
// lent.
#pragma once

#include <memory>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/data/objective.h"
#include "esp/device/pool.h"
#include "esp/device/thread_pool.h"
#include "esp/model/model.h"
#include "esp/optim/optimizer.h"

namespace bert_ddp {

struct ReplicaOptions {
  uint64_t num_items = 10000;
  uint64_t batch = 32;  // items per rank and step
  uint64_t seed = 0;
  int threads = 1;
  double dropout = 0.1;
  double lr = 1e-4, eps = 1e-8;
  esp::DType dtype = esp::DType::f32;
  bool check_copies = false;  // compare all copies after every step; InternalError names the ranks that differ
};

class Replica {
 public:
  Replica(esp::comm::Communicator& comm, const ReplicaOptions& options);

  // The mean loss over the epoch's items of all ranks. Collective, as are step and check_copies.
  double train_epoch(uint64_t epoch);
  // One step; the summed loss of this rank's items.
  double step(uint64_t epoch, uint64_t step);
  // InternalError where parameters are not the same bits on all ranks.
  void check_copies();

  uint64_t steps_per_epoch() const { return sampler_.steps_per_epoch(); }
  esp::nn::ParameterList& parameters() { return model_->parameters(); }

 private:
  esp::model::ModelBatch load(uint64_t epoch, uint64_t step);
  void average_gradients();

  esp::comm::Communicator& comm_;
  const ReplicaOptions options_;
  esp::device::MemoryAccount account_;
  esp::device::ThreadPool threads_;
  esp::device::MemoryPool pool_;
  esp::tensor::Context context_;
  esp::data::DistributedSampler sampler_;
  std::unique_ptr<esp::data::Classification> data_;
  std::unique_ptr<esp::model::Model> model_;
  std::unique_ptr<esp::optim::Optimizer> optimizer_;
  esp::autograd::Tape tape_;
  std::vector<uint64_t> items_;
  esp::data::Batch batch_;
  int64_t num_steps_ = 0;
};

}  // namespace bert_ddp
