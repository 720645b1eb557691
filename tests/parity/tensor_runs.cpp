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

Tensor ids(const ModelRank& holder, const tensor::Shape& shape, int64_t below, uint64_t seed) {
  Tensor t = tensor::empty(holder.context, shape, DType::i32, device::MemoryCategory::other);
  for (int64_t i = 0; i < t.count(); ++i)
    t.as<int32_t>()[i] =
        static_cast<int32_t>(random_bits(seed, 99, static_cast<uint64_t>(i)) % static_cast<uint64_t>(below));
  return t;
}

model::ModelBatch batch_of(const ModelRank& holder, const TensorPlan& plan, uint64_t seed) {
  const model::ModelConfig& c = plan.config;
  const int64_t B = plan.batch, T = plan.tokens;
  model::ModelBatch batch;
  batch.inputs = ids(holder, {B, T}, c.vocab, seed);
  batch.targets =
      c.num_classes > 0 ? ids(holder, {B}, c.num_classes, seed + 1) : ids(holder, {B, T}, c.vocab, seed + 1);
  if (c.num_classes == 0) batch.targets.as<int32_t>()[3] = batch.targets.as<int32_t>()[7] = -1;
  if (c.arch == "t5") batch.decoder_inputs = ids(holder, {B, T}, c.vocab, seed + 2);
  if (c.type_vocab > 0) batch.segments = ids(holder, {B, T}, c.type_vocab, seed + 3);
  if (c.arch != "gpt" && c.arch != "llama") {
    batch.lengths = ids(holder, {B}, T, seed + 4);
    for (int64_t b = 0; b < B; ++b) batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(T - b);
  }
  return batch;
}

std::vector<double> doubles(const ModelRank& holder, const Tensor& x) {
  const Tensor wide = tensor::cast_to(holder.context, x, DType::f64, device::MemoryCategory::other);
  return {wide.span<double>().begin(), wide.span<double>().end()};
}

// value −= lr·gradient.
void descend(const ModelRank& holder, nn::ParameterList& list, double lr) {
  for (auto& unit : list.units()) {
    kernel::scale(unit.grads.data(), -lr, unit.count, unit.grads.dtype(), holder.context.stream);
    kernel::add_to(unit.values.data(), unit.grads.data(), unit.count, unit.grads.dtype(), holder.context.stream);
  }
}

TensorSeen run_one(ModelRank& holder, const TensorPlan& plan) {
  TensorSeen seen;
  model::ModelPart part;
  part.shares = holder.shares();
  const auto model = model::make_model(plan.config, part);
  nn::ParameterList& list = model->parameters();
  list.materialize(holder.context, plan.dtype, true);
  list.initialise(3, holder.context.stream);
  const auto parts = plan.sequence
                         ? parallel::make_partial_gradients(holder.mesh, list, holder.context, std::chrono::seconds(60))
                         : nullptr;
  nn::ForwardContext pass = holder.pass(plan.batch);
  pass.training = plan.training;
  pass.recompute = plan.recompute;
  {
    const autograd::NoRecording quiet(holder.tape);
    nn::ForwardContext look = pass;
    look.training = false;
    seen.logits = doubles(holder, model->logits_of(look, batch_of(holder, plan, 11)));
  }
  comm::Communicator* const line = holder.mesh.group(parallel::MeshAxis::tensor);
  const auto before = line ? line->stats() : std::vector<comm::CallStats>();
  for (int step = 0; step < plan.steps; ++step) {
    pass.step = step;
    list.zero_gradients(holder.context.stream);
    double loss = 0;
    for (int m = 0; m < plan.micro_batches; ++m) {
      const model::ModelBatch batch =
          batch_of(holder, plan, 11 + static_cast<uint64_t>(10 * (step * plan.micro_batches + m)));
      pass.first_sequence = 5 + m * plan.batch;
      if (parts) parts->begin_pass(m + 1 == plan.micro_batches);
      const autograd::Loss total = model->forward(pass, batch, 0.1);
      loss += tensor::item(total.total.value());
      autograd::backward(holder.tape, total);
      holder.tape.clear();
      if (parts) parts->end_pass();
    }
    seen.losses.push_back(loss);
    if (step + 1 == plan.steps)
      for (const nn::Parameter& p : list.all())
        seen.parameters[p.name] = {
            {}, doubles(holder, p.weight.grad), p.cut_dim >= 0, p.shape, p.global_shape, p.cut_dim, p.sections};
    descend(holder, list, plan.lr);
  }
  for (const nn::Parameter& p : list.all()) seen.parameters[p.name].values = doubles(holder, p.weight.value);
  seen.peak_activations = holder.account.use(device::MemoryCategory::activation).peak;
  if (line) {
    seen.stats = line->stats();
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

double apart(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return 1e9;
  double sum = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size == 0 ? std::sqrt(sum) : std::sqrt(sum / size);
}

}  // namespace

std::vector<double> Held::part(const std::vector<double>& whole) const {
  nn::Parameter p;
  p.shape = shape;
  p.global_shape = global_shape;
  p.cut_dim = cut_dim;
  p.sections = sections;
  return parallel::part_of<double>(p, whole);
}

std::vector<TensorSeen> run_tensor(const TensorPlan& plan) {
  std::vector<TensorSeen> seen(static_cast<size_t>(plan.tp));
  if (plan.tp == 1) {
    ModelRank one;
    seen[0] = run_one(one, plan);
    return seen;
  }
  parallel::MeshShape shape;
  shape.tp = plan.tp;
  parallel::RegionOptions options;
  options.sequence = plan.sequence;
  options.overlap = plan.overlap;
  options.piece_bytes = plan.piece_bytes;
  options.keep_gathered = plan.keep_gathered;
  options.timeout = std::chrono::seconds(60);
  parallel::run_model_ranks(
      plan.tp,
      [&](comm::Communicator* world) {
        ModelRank holder(world, shape, options);
        seen[static_cast<size_t>(world->rank())] = run_one(holder, plan);
      },
      plan.rings ? parallel::kRings : "");
  return seen;
}

double worst_distance(const std::vector<TensorSeen>& ranks, const TensorSeen& one) {
  double worst = 0;
  for (const TensorSeen& rank : ranks) {
    worst = std::max(worst, apart(rank.losses, one.losses));
    worst = std::max(worst, apart(rank.logits, one.logits));
    for (const auto& [name, held] : rank.parameters) {
      const Held& whole = one.parameters.at(name);
      worst = std::max(worst, apart(held.values, held.part(whole.values)));
      // A key's bias has no gradient but rounding: beside the values, not beside itself.
      double size = 0;
      for (double g : whole.gradients) size += g * g;
      if (std::sqrt(size) > 1e-9) worst = std::max(worst, apart(held.gradients, held.part(whole.gradients)));
    }
  }
  return worst;
}

}  // namespace esp::parity
