#include "tests/parity/activation_runs.h"

#include <cmath>

#include "esp/base/rng.h"
#include "esp/parallel/testing.h"
#include "esp/parallel/textbook.h"

namespace esp::parity {

using device::MemoryCategory;
using parallel::ModelRank;
using tensor::Tensor;

namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);

Tensor ids(const ModelRank& holder, const tensor::Shape& shape, int64_t below, uint64_t seed) {
  Tensor t = tensor::empty(holder.context, shape, DType::i32, MemoryCategory::other);
  for (int64_t i = 0; i < t.count(); ++i)
    t.as<int32_t>()[i] =
        static_cast<int32_t>(random_bits(seed, 99, static_cast<uint64_t>(i)) % static_cast<uint64_t>(below));
  return t;
}

model::ModelBatch batch_of(const ModelRank& holder, const ActivationPlan& plan) {
  const model::ModelConfig& c = plan.config;
  const int64_t B = plan.batch, T = plan.tokens;
  model::ModelBatch batch;
  batch.inputs = ids(holder, {B, T}, c.vocab, 11);
  batch.targets = ids(holder, {B, T}, c.vocab, 12);
  batch.targets.as<int32_t>()[3] = -1;
  if (c.type_vocab > 0) batch.segments = ids(holder, {B, T}, c.type_vocab, 13);
  if (c.arch == "t5") batch.decoder_inputs = ids(holder, {B, T}, c.vocab, 14);
  if (c.arch == "bert" || c.arch == "t5") {
    batch.lengths = ids(holder, {B}, T, 15);
    for (int64_t b = 0; b < B; ++b) batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(T - b);
  }
  return batch;
}

ActivationSeen run_one(ModelRank& holder, const parallel::RegionOptions& options, const ActivationPlan& plan) {
  if (plan.textbook) holder.regions = parallel::make_textbook_regions(holder.mesh, options);
  model::ModelPart part;
  part.shares = holder.shares();
  const auto model = model::make_model(plan.config, part);
  nn::ParameterList& list = model->parameters();
  list.materialize(holder.context, plan.dtype, true);
  list.initialise(3, holder.context.stream);
  list.zero_gradients(holder.context.stream);
  const auto partial =
      plan.sequence ? parallel::make_partial_gradients(holder.mesh, list, holder.context, kTimeout) : nullptr;
  const model::ModelBatch batch = batch_of(holder, plan);
  nn::ForwardContext pass = holder.pass(plan.batch);
  pass.training = true;
  pass.recompute = plan.recompute;

  ActivationSeen seen;
  holder.account.reset_peaks();
  if (partial) partial->begin_pass(true);
  model::HiddenStates state = model->hidden(pass, batch);
  const uint64_t stream = state.x.value().bytes();  // the head's to keep
  seen.kept = holder.account.use(MemoryCategory::activation).current - stream;
  const autograd::Loss loss = model->loss(pass, state, batch, 0.1);
  state = {};
  seen.loss = tensor::item(loss.total.value());
  autograd::backward(holder.tape, loss);
  holder.tape.clear();
  if (partial) partial->end_pass();
  seen.peak = holder.account.use(MemoryCategory::activation).peak;

  for (const nn::Parameter& p : list.all()) {
    const Tensor wide = tensor::cast_to(holder.context, p.weight.grad, DType::f64, MemoryCategory::other);
    seen.gradients[p.name] = {wide.span<double>().begin(), wide.span<double>().end()};
    auto& about = seen.parameters[p.name] = std::make_shared<nn::Parameter>();
    about->shape = p.shape;
    about->global_shape = p.global_shape;
    about->cut_dim = p.cut_dim;
    about->sections = p.sections;
  }
  return seen;
}

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

}  // namespace

std::vector<ActivationSeen> run_pass(const ActivationPlan& plan) {
  std::vector<ActivationSeen> seen(static_cast<size_t>(plan.tp));
  parallel::MeshShape shape;
  shape.tp = plan.tp;
  parallel::RegionOptions options;
  options.sequence = plan.sequence;
  options.timeout = kTimeout;
  if (plan.tp == 1) {
    ModelRank one;
    seen[0] = run_one(one, options, plan);
    return seen;
  }
  parallel::run_model_ranks(plan.tp, [&](comm::Communicator* world) {
    ModelRank holder(world, shape, options);
    seen[static_cast<size_t>(world->rank())] = run_one(holder, options, plan);
  });
  return seen;
}

double distance(const std::vector<ActivationSeen>& ranks, const ActivationSeen& one) {
  double worst = 0;
  for (const ActivationSeen& rank : ranks) {
    worst = std::max(worst, std::abs(rank.loss - one.loss) / std::abs(one.loss));
    for (const auto& [name, gradient] : rank.gradients) {
      std::vector<double> wanted = parallel::part_of<double>(*rank.parameters.at(name), one.gradients.at(name));
      if (wanted.size() != gradient.size()) return 1e9;
      const double size = norm_of(one.gradients.at(name));
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] -= gradient[i];
      if (size > 1e-9) worst = std::max(worst, norm_of(wanted) / size);  // a key's bias has none but rounding
    }
  }
  return worst;
}

BlockBytes bytes_per_block(ActivationPlan plan) {
  constexpr int64_t kFew = 2, kMore = 2;
  const auto most = [&](int64_t layers) {
    plan.config.layers = layers;
    BlockBytes bytes;
    for (const ActivationSeen& rank : run_pass(plan))
      bytes = {std::max(bytes.kept, rank.kept), std::max(bytes.peak, rank.peak)};
    return bytes;
  };
  const BlockBytes few = most(kFew), more = most(kFew + kMore);
  return {(more.kept - few.kept) / kMore, (more.peak - few.peak) / kMore};
}

double bytes_by_count(const ActivationPlan& plan) {
  const double h = static_cast<double>(plan.config.dim), a = static_cast<double>(plan.config.heads);
  const double s = static_cast<double>(plan.tokens), sbh = s * static_cast<double>(plan.batch) * h, t = plan.tp;
  const bool selective = plan.recompute == nn::RecomputeMode::selective;
  // Of everybody's stream, and of heads and hidden units, which are divided.
  const double whole = plan.textbook ? 10 : 8;
  const double divided = plan.textbook ? 24 + (selective ? 0 : 5 * a * s / h) : selective ? 16 : 24;
  if (plan.recompute == nn::RecomputeMode::full) return plan.sequence ? 2 * sbh / t : 2 * sbh;
  return plan.sequence ? sbh / t * (whole + divided) : sbh * (whole + divided / t);
}

}  // namespace esp::parity
