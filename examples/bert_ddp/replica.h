// One rank's replica of the model, and the training step that keeps all replicas equal.
//
// Every rank builds the same two-layer BERT classifier and receives rank 0's parameters. Each step then runs forward
// and backward on the rank's share of the batch, a ring all-reduce of the gradients, and an Adam step. Replicas stay
// bit-identical, because the ring all-reduce gives every rank the same bits. One thread; the caller owns the
// communicator.
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
  bool check_copies = false;  // compares all replicas after every step; InternalError names the ranks that differ
};

class Replica {
 public:
  Replica(esp::comm::Communicator& comm, const ReplicaOptions& options);

  // Trains one epoch and returns the mean loss over all its items, on all ranks. Collective; so are step and
  // check_copies.
  double train_epoch(uint64_t epoch);
  // Runs one step and returns the sum of this rank's losses.
  double step(uint64_t epoch, uint64_t step);
  // InternalError: parameters differ between ranks in at least one bit.
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
