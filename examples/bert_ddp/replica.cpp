#include "examples/bert_ddp/replica.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"

namespace bert_ddp {
namespace {

using namespace esp;

model::ModelConfig shape_of(const ReplicaOptions& options) {
  model::ModelConfig config = model::preset("bert-lecture").config;
  config.dropout = options.dropout;
  return config;
}

data::SyntheticOptions data_of(const ReplicaOptions& options, const model::ModelConfig& model) {
  data::SyntheticOptions data;
  data.num_items = options.num_items;
  data.T = model.seq_len;
  data.vocab = static_cast<int32_t>(model.vocab);
  data.seed = options.seed;
  return data;
}

// FNV-1a over words of eight bytes; the last word is padded with zeros. Any changed bit of a parameter changes the
// hash.
uint64_t hash_of(const nn::ParameterList& parameters) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const auto& unit : parameters.units()) {
    const auto* bytes = static_cast<const char*>(unit.values.data());
    const size_t size = static_cast<size_t>(unit.count) * size_of(unit.values.dtype());
    for (size_t at = 0; at < size; at += sizeof hash) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min(sizeof word, size - at));
      hash = (hash ^ word) * 0x100000001b3;
      hash ^= hash >> 32;  // mixes high bits into low bits; multiplication only moves bits upwards
    }
  }
  return hash;
}

}  // namespace

Replica::Replica(comm::Communicator& comm, const ReplicaOptions& options)
    : comm_(comm),
      options_(options),
      threads_(options.threads),
      pool_(account_),
      context_{{device::parse_device("cpu"), &threads_, nullptr}, &pool_},
      sampler_(options.num_items, comm.size(), comm.rank(), options.batch, options.seed),
      tape_(context_) {
  const model::ModelConfig config = shape_of(options);
  data_ = data::make_synthetic_classification(data_of(options, config));
  model_ = model::make_model(config);
  parameters().materialize(context_, options.dtype, true);
  // Each rank initialises with a different seed, as a program that seeds from the clock would. Then rank 0's parameters
  // are broadcast.
  parameters().initialise(options.seed + static_cast<uint64_t>(comm.rank()), context_.stream);
  for (auto& unit : parameters().units())
    comm_.broadcast(unit.values.data(), static_cast<size_t>(unit.count), unit.values.dtype(), 0);

  optim::OptimizerOptions adam;
  adam.name = "adam";
  adam.eps = options.eps;
  optimizer_ = optim::make_optimizer(adam, parameters(), context_);
}

model::ModelBatch Replica::load(uint64_t epoch, uint64_t step) {
  sampler_.batch(epoch, step, items_);
  const auto rows = static_cast<int64_t>(items_.size());
  batch_.reshape(rows, data_->shape());
  for (int64_t row = 0; row < rows; ++row) data_->fill_item(items_[static_cast<size_t>(row)], row, batch_);
  model::ModelBatch borrowed;
  borrowed.inputs = tensor::Tensor::borrow(batch_.inputs.data(), {rows, batch_.shape.T}, DType::i32);
  borrowed.targets = tensor::Tensor::borrow(batch_.targets.data(), {rows}, DType::i32);
  return borrowed;
}

// The sampler wraps around, so all ranks have batches of the same size. Therefore the mean of the gradients of all
// ranks is the mean over all items.
void Replica::average_gradients() {
  auto& units = parameters().units();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {  // the order in which backward finishes the units
    comm::Call call;
    call.op = comm::Op::all_reduce;
    call.in = call.out = unit->grads.data();
    call.count = static_cast<size_t>(unit->count);
    call.dtype = unit->grads.dtype();
    call.reduce = comm::ReduceOp::avg;
    call.algorithm = "ring";
    comm_.run(call);
  }
}

double Replica::step(uint64_t epoch, uint64_t step) {
  const model::ModelBatch batch = load(epoch, step);
  parameters().zero_gradients(context_.stream);
  nn::ForwardContext pass;
  pass.tape = &tape_;
  pass.training = true;
  pass.seed = options_.seed;
  pass.step = num_steps_++;
  pass.first_sequence =
      comm_.rank() * static_cast<int64_t>(options_.batch);  // gives every rank different dropout masks
  double sum = 0;
  {
    const autograd::Loss loss = model_->forward(pass, batch, 1.0 / static_cast<double>(batch_.counted));
    sum = tensor::item(loss.total.value());
    autograd::backward(tape_, loss);
  }
  tape_.clear();
  average_gradients();
  optimizer_->step(options_.lr, 1.0);
  if (options_.check_copies) check_copies();
  return sum;
}

double Replica::train_epoch(uint64_t epoch) {
  double totals[2] = {0, static_cast<double>(sampler_.items_per_rank())};  // sum of losses and number of items
  for (uint64_t s = 0; s < steps_per_epoch(); ++s) totals[0] += step(epoch, s);
  comm_.all_reduce(totals, totals, 2, DType::f64, comm::ReduceOp::sum);
  return totals[0] / totals[1];
}

void Replica::check_copies() {
  const auto mine = static_cast<int64_t>(hash_of(parameters()));
  std::vector<int64_t> all(static_cast<size_t>(comm_.size()));
  comm_.all_gather(&mine, all.data(), 1, DType::i64);
  std::vector<size_t> others;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0]) others.push_back(rank);
  if (!others.empty())
    throw InternalError(fmt::format("step {}: the parameters of ranks {} differ from those of rank 0", num_steps_,
                                    fmt::join(others, ", ")));
}

}  // namespace bert_ddp
