#include "tests/parity/tensor_runs.h"

#include <cmath>
#include <mutex>

#include "esp/base/rng.h"
#include "esp/kernel/elementwise.h"
#include "esp/parallel/testing.h"

namespace esp::parity {

using parallel::ModelRank;
using tensor::Tensor;

namespace {

Tensor random_ids(const ModelRank& rank, const tensor::Shape& shape, int64_t below, uint64_t seed) {
  Tensor t = tensor::empty(rank.context, shape, DType::i32, device::MemoryCategory::other);
  for (int64_t i = 0; i < t.count(); ++i)
    t.as<int32_t>()[i] =
        static_cast<int32_t>(random_bits(seed, 99, static_cast<uint64_t>(i)) % static_cast<uint64_t>(below));
  return t;
}

model::ModelBatch batch_of(const ModelRank& rank, const TensorRunSpec& spec, uint64_t seed) {
  const model::ModelConfig& c = spec.config;
  const int64_t B = spec.batch, T = spec.tokens;
  model::ModelBatch batch;
  batch.inputs = random_ids(rank, {B, T}, c.vocab, seed);
  batch.targets =
      c.num_classes > 0 ? random_ids(rank, {B}, c.num_classes, seed + 1) : random_ids(rank, {B, T}, c.vocab, seed + 1);
  if (c.num_classes == 0) batch.targets.as<int32_t>()[3] = batch.targets.as<int32_t>()[7] = -1;
  if (c.arch == "t5") batch.decoder_inputs = random_ids(rank, {B, T}, c.vocab, seed + 2);
  if (c.type_vocab > 0) batch.segments = random_ids(rank, {B, T}, c.type_vocab, seed + 3);
  if (c.arch != "gpt" && c.arch != "llama") {
    batch.lengths = random_ids(rank, {B}, T, seed + 4);
    for (int64_t b = 0; b < B; ++b) batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(T - b);
  }
  return batch;
}

std::vector<double> doubles(const ModelRank& rank, const Tensor& x) {
  const Tensor wide = tensor::cast_to(rank.context, x, DType::f64, device::MemoryCategory::other);
  return {wide.span<double>().begin(), wide.span<double>().end()};
}

// A step of plain SGD: value −= lr·gradient.
void descend(const ModelRank& rank, nn::ParameterList& list, double lr) {
  for (auto& unit : list.units()) {
    kernel::scale(unit.grads.data(), -lr, unit.count, unit.grads.dtype(), rank.context.stream);
    kernel::add_to(unit.values.data(), unit.grads.data(), unit.count, unit.grads.dtype(), rank.context.stream);
  }
}

TensorRankResult run_rank(ModelRank& rank, const TensorRunSpec& spec) {
  TensorRankResult seen;
  model::ModelPart part;
  part.shards = rank.shares();
  const auto model = model::make_model(spec.config, part);
  nn::ParameterList& list = model->parameters();
  list.materialize(rank.context, spec.dtype, true);
  list.initialise(3, rank.context.stream);
  const auto parts = spec.sequence
                         ? parallel::make_partial_gradients(rank.mesh, list, rank.context, std::chrono::seconds(60))
                         : nullptr;
  nn::ForwardContext pass = rank.pass(spec.batch);
  pass.training = spec.training;
  pass.recompute = spec.recompute;
  {
    const autograd::NoGradGuard quiet(rank.tape);
    nn::ForwardContext look = pass;
    look.training = false;
    seen.logits = doubles(rank, model->logits_of(look, batch_of(rank, spec, 11)));
  }
  comm::Communicator* const tensor_group = rank.mesh.group(parallel::MeshAxis::tensor);
  const auto before = tensor_group ? tensor_group->stats() : std::vector<comm::CallStats>();
  for (int step = 0; step < spec.steps; ++step) {
    pass.step = step;
    list.zero_gradients(rank.context.stream);
    double loss = 0;
    for (int m = 0; m < spec.micro_batches; ++m) {
      const model::ModelBatch batch =
          batch_of(rank, spec, 11 + static_cast<uint64_t>(10 * (step * spec.micro_batches + m)));
      pass.first_sequence = 5 + m * spec.batch;
      if (parts) parts->begin_pass(m + 1 == spec.micro_batches);
      const autograd::Loss total = model->forward(pass, batch, 0.1);
      loss += tensor::item(total.total.value());
      autograd::backward(rank.tape, total);
      rank.tape.clear();
      if (parts) parts->end_pass();
    }
    seen.losses.push_back(loss);
    if (step + 1 == spec.steps)
      for (const nn::Parameter& p : list.all())
        seen.parameters[p.name] = {
            {}, doubles(rank, p.weight.grad), p.cut_dim >= 0, p.shape, p.global_shape, p.cut_dim, p.sections};
    descend(rank, list, spec.lr);
  }
  for (const nn::Parameter& p : list.all()) seen.parameters[p.name].values = doubles(rank, p.weight.value);
  seen.peak_activations = rank.account.use(device::MemoryCategory::activation).peak;
  if (tensor_group) {
    seen.stats = tensor_group->stats();
    for (comm::CallStats& now : seen.stats)
      for (const comm::CallStats& then : before)
        if (then.op == now.op && then.algorithm == now.algorithm && then.transport == now.transport) {
          now.calls -= then.calls;
          now.bytes_sent -= then.bytes_sent;
          now.bytes_received -= then.bytes_received;
        }
  }
  return seen;
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return 1e9;
  double sum = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size == 0 ? std::sqrt(sum) : std::sqrt(sum / size);
}

}  // namespace

std::vector<double> ParameterShard::part(const std::vector<double>& whole) const {
  nn::Parameter p;
  p.shape = shape;
  p.global_shape = global_shape;
  p.cut_dim = cut_dim;
  p.sections = sections;
  return parallel::part_of<double>(p, whole);
}

std::vector<TensorRankResult> run_tensor_parallel(const TensorRunSpec& spec) {
  std::vector<TensorRankResult> seen(static_cast<size_t>(spec.tp));
  if (spec.tp == 1) {
    ModelRank one;
    seen[0] = run_rank(one, spec);
    return seen;
  }
  parallel::MeshShape shape;
  shape.tp = spec.tp;
  parallel::ModelParallelOptions options;
  options.sequence = spec.sequence;
  options.overlap = spec.overlap;
  options.piece_bytes = spec.piece_bytes;
  options.keep_gathered = spec.keep_gathered;
  options.timeout = std::chrono::seconds(60);
  parallel::run_model_ranks(
      spec.tp,
      [&](comm::Communicator* world) {
        ModelRank rank(world, shape, options);
        seen[static_cast<size_t>(world->rank())] = run_rank(rank, spec);
      },
      spec.rings ? parallel::kRings : "");
  return seen;
}

double max_relative_error(const std::vector<TensorRankResult>& ranks, const TensorRankResult& one) {
  double worst = 0;
  for (const TensorRankResult& rank : ranks) {
    worst = std::max(worst, relative_distance(rank.losses, one.losses));
    worst = std::max(worst, relative_distance(rank.logits, one.logits));
    for (const auto& [name, shard] : rank.parameters) {
      const ParameterShard& whole = one.parameters.at(name);
      worst = std::max(worst, relative_distance(shard.values, shard.part(whole.values)));
      // Skips key biases: their gradient is zero except for rounding, so a relative error has no meaning.
      double size = 0;
      for (double g : whole.gradients) size += g * g;
      if (std::sqrt(size) > 1e-9)
        worst = std::max(worst, relative_distance(shard.gradients, shard.part(whole.gradients)));
    }
  }
  return worst;
}

}  // namespace esp::parity
