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

Tensor random_ids(const ModelRank& rank, const tensor::Shape& shape, int64_t below, uint64_t seed) {
  Tensor t = tensor::empty(rank.context, shape, DType::i32, MemoryCategory::other);
  for (int64_t i = 0; i < t.count(); ++i)
    t.as<int32_t>()[i] =
        static_cast<int32_t>(random_bits(seed, 99, static_cast<uint64_t>(i)) % static_cast<uint64_t>(below));
  return t;
}

model::ModelBatch batch_of(const ModelRank& rank, const ActivationRunSpec& spec) {
  const model::ModelConfig& c = spec.config;
  const int64_t B = spec.batch, T = spec.tokens;
  model::ModelBatch batch;
  batch.inputs = random_ids(rank, {B, T}, c.vocab, 11);
  batch.targets = random_ids(rank, {B, T}, c.vocab, 12);
  batch.targets.as<int32_t>()[3] = -1;
  if (c.type_vocab > 0) batch.segments = random_ids(rank, {B, T}, c.type_vocab, 13);
  if (c.arch == "t5") batch.decoder_inputs = random_ids(rank, {B, T}, c.vocab, 14);
  if (c.arch == "bert" || c.arch == "t5") {
    batch.lengths = random_ids(rank, {B}, T, 15);
    for (int64_t b = 0; b < B; ++b) batch.lengths.as<int32_t>()[b] = static_cast<int32_t>(T - b);
  }
  return batch;
}

ActivationResult run_rank(ModelRank& rank, const parallel::ModelParallelOptions& options,
                          const ActivationRunSpec& spec) {
  if (spec.textbook) rank.regions = parallel::make_textbook_ops(rank.mesh, options);
  model::ModelPart part;
  part.shards = rank.shares();
  const auto model = model::make_model(spec.config, part);
  nn::ParameterList& list = model->parameters();
  list.materialize(rank.context, spec.dtype, true);
  list.initialise(3, rank.context.stream);
  list.zero_gradients(rank.context.stream);
  const auto partial =
      spec.sequence ? parallel::make_partial_gradients(rank.mesh, list, rank.context, kTimeout) : nullptr;
  const model::ModelBatch batch = batch_of(rank, spec);
  nn::ForwardContext pass = rank.pass(spec.batch);
  pass.training = true;
  pass.recompute = spec.recompute;

  ActivationResult seen;
  rank.account.reset_peaks();
  if (partial) partial->begin_pass(true);
  model::HiddenStates state = model->hidden(pass, batch);
  // excludes the residual stream, which the head keeps
  const uint64_t stream = state.x.value().bytes();
  seen.kept = rank.account.use(MemoryCategory::activation).current - stream;
  const autograd::Loss loss = model->loss(pass, state, batch, 0.1);
  state = {};
  seen.loss = tensor::item(loss.total.value());
  autograd::backward(rank.tape, loss);
  rank.tape.clear();
  if (partial) partial->end_pass();
  seen.peak = rank.account.use(MemoryCategory::activation).peak;

  for (const nn::Parameter& p : list.all()) {
    const Tensor wide = tensor::cast_to(rank.context, p.weight.grad, DType::f64, MemoryCategory::other);
    seen.gradients[p.name] = {wide.span<double>().begin(), wide.span<double>().end()};
    auto& info = seen.parameters[p.name] = std::make_shared<nn::Parameter>();
    info->shape = p.shape;
    info->global_shape = p.global_shape;
    info->cut_dim = p.cut_dim;
    info->sections = p.sections;
  }
  return seen;
}

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

}  // namespace

std::vector<ActivationResult> run_training_pass(const ActivationRunSpec& spec) {
  std::vector<ActivationResult> seen(static_cast<size_t>(spec.tp));
  parallel::MeshShape shape;
  shape.tp = spec.tp;
  parallel::ModelParallelOptions options;
  options.sequence = spec.sequence;
  options.timeout = kTimeout;
  if (spec.tp == 1) {
    ModelRank one;
    seen[0] = run_rank(one, options, spec);
    return seen;
  }
  parallel::run_model_ranks(spec.tp, [&](comm::Communicator* world) {
    ModelRank rank(world, shape, options);
    seen[static_cast<size_t>(world->rank())] = run_rank(rank, options, spec);
  });
  return seen;
}

double max_relative_error(const std::vector<ActivationResult>& ranks, const ActivationResult& one) {
  double worst = 0;
  for (const ActivationResult& rank : ranks) {
    worst = std::max(worst, std::abs(rank.loss - one.loss) / std::abs(one.loss));
    for (const auto& [name, gradient] : rank.gradients) {
      std::vector<double> expected = parallel::part_of<double>(*rank.parameters.at(name), one.gradients.at(name));
      if (expected.size() != gradient.size()) return 1e9;
      const double size = norm_of(one.gradients.at(name));
      for (size_t i = 0; i < expected.size(); ++i) expected[i] -= gradient[i];
      // skips key biases: their gradient is zero except for rounding, so a relative error has no meaning
      if (size > 1e-9) worst = std::max(worst, norm_of(expected) / size);
    }
  }
  return worst;
}

BlockBytes bytes_per_block(ActivationRunSpec spec) {
  constexpr int64_t kLayers = 2, kExtraLayers = 2;
  const auto most = [&](int64_t layers) {
    spec.config.layers = layers;
    BlockBytes bytes;
    for (const ActivationResult& rank : run_training_pass(spec))
      bytes = {std::max(bytes.kept, rank.kept), std::max(bytes.peak, rank.peak)};
    return bytes;
  };
  const BlockBytes few = most(kLayers), more = most(kLayers + kExtraLayers);
  return {(more.kept - few.kept) / kExtraLayers, (more.peak - few.peak) / kExtraLayers};
}

double expected_block_bytes(const ActivationRunSpec& spec) {
  const double h = static_cast<double>(spec.config.dim), a = static_cast<double>(spec.config.heads);
  const double s = static_cast<double>(spec.tokens), sbh = s * static_cast<double>(spec.batch) * h, t = spec.tp;
  const bool selective = spec.recompute == nn::RecomputeMode::selective;
  // Coefficients of sbh. `whole` is for tensors that every rank holds completely. `divided` is for attention heads and
  // hidden units, which are sharded over the tp ranks.
  const double whole = spec.textbook ? 10 : 8;
  const double divided = spec.textbook ? 24 + (selective ? 0 : 5 * a * s / h) : selective ? 16 : 24;
  if (spec.recompute == nn::RecomputeMode::full) return spec.sequence ? 2 * sbh / t : 2 * sbh;
  return spec.sequence ? sbh / t * (whole + divided) : sbh * (whole + divided / t);
}

}  // namespace esp::parity
