#include "apps/espalier/lab_tensor_run.h"

#include <cmath>

#include "esp/base/rng.h"
#include "esp/comm/communicator.h"
#include "esp/model/model.h"
#include "esp/net/inproc/threads.h"
#include "esp/parallel/model_parallel_ops.h"

namespace esp::app {

using tensor::Tensor;

namespace {

struct RankState {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
};

// Runs `body` on ranks that use ring algorithms: rings send the fewest bytes for any size, as the formulas assume.
void with_ranks(int size, const std::function<void(comm::Communicator*)>& body) {
  if (size == 1) return body(nullptr);
  net::run_threads(size, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.algorithms = "all_reduce=ring,all_gather=ring,reduce_scatter=ring";
    const auto comm = comm::make_communicator(world, world.world_group(), options);
    body(comm.get());
  });
}

struct CallTotals {
  uint64_t bytes = 0;
  std::map<comm::Op, int64_t> calls;
};

CallTotals call_totals(comm::Communicator* comm) {
  CallTotals sum;
  if (!comm) return sum;
  for (const comm::CallStats& one : comm->stats()) {
    sum.bytes += one.bytes_sent;
    sum.calls[one.op] += static_cast<int64_t>(one.calls);
  }
  return sum;
}

Tensor tokens(const RankState& state, const TensorCase& spec, uint64_t seed) {
  Tensor ids = tensor::empty(state.context, {spec.batch, spec.seq}, DType::i32, device::MemoryCategory::other);
  for (int64_t i = 0; i < ids.count(); ++i)
    ids.as<int32_t>()[i] =
        static_cast<int32_t>(random_bits(seed, 0, static_cast<uint64_t>(i)) % static_cast<uint64_t>(spec.model.vocab));
  return ids;
}

struct StepResult {
  uint64_t bytes = 0;  // summed over ranks
  std::map<comm::Op, int64_t> calls;
  uint64_t activations = 0;
  double loss = 0;
};

// Runs one micro-batch on a model with `layers` layers.
StepResult run_step(TensorCase spec, int64_t layers) {
  spec.model.layers = layers;
  parallel::MeshShape shape;
  shape.tp = spec.num_ranks;
  parallel::ModelParallelOptions options;
  options.sequence = spec.sequence;
  options.keep_gathered = spec.keep_gathered;
  options.overlap = false;  // makes one call per collective instead of a call for each of several pieces
  std::vector<StepResult> steps(static_cast<size_t>(spec.num_ranks));
  with_ranks(spec.num_ranks, [&](comm::Communicator* world) {
    RankState state;
    const parallel::Mesh mesh(shape, world);
    const auto regions = parallel::make_model_parallel_ops(mesh, options);
    autograd::Tape tape(state.context);
    model::ModelPart part;
    part.shards.tensor = {mesh.coordinates().tp, spec.num_ranks};
    const auto model = model::make_model(spec.model, part);
    model->parameters().materialize(state.context, DType::f32, true);
    model->parameters().initialise(1, state.context.stream);
    nn::ForwardContext pass;
    pass.tape = &tape;
    pass.training = true;
    pass.num_sequences = spec.batch;
    pass.ops = regions.get();
    model::ModelBatch batch;
    batch.inputs = tokens(state, spec, 3);
    batch.targets = tokens(state, spec, 4);
    comm::Communicator* const tp_comm = mesh.group(parallel::MeshAxis::tensor);
    const CallTotals before = call_totals(tp_comm);
    const double scale = 1.0 / static_cast<double>(spec.batch * spec.seq);
    const autograd::Loss loss = model->forward(pass, batch, scale);
    StepResult& step = steps[static_cast<size_t>(mesh.coordinates().tp)];
    step.activations = state.account.use(device::MemoryCategory::activation).current;
    step.loss = tensor::item(loss.total.value()) * scale;
    autograd::backward(tape, loss);
    tape.clear();
    const CallTotals after = call_totals(tp_comm);
    step.bytes = after.bytes - before.bytes;
    for (const auto& [op, calls] : after.calls)
      step.calls[op] = calls - (before.calls.contains(op) ? before.calls.at(op) : 0);
  });
  StepResult all = steps[0];
  for (size_t r = 1; r < steps.size(); ++r) all.bytes += steps[r].bytes;
  return all;
}

}  // namespace

TensorLayer measure_layer(const TensorCase& spec) {
  const StepResult one = run_step(spec, 1), two = run_step(spec, 2);
  TensorLayer layer;
  layer.bytes_per_rank = static_cast<double>(two.bytes - one.bytes) / spec.num_ranks;
  for (const auto& [op, calls] : two.calls) layer.calls[op] = calls - one.calls.at(op);
  layer.kept_bytes = static_cast<double>(two.activations) - static_cast<double>(one.activations);
  layer.loss = one.loss;
  return layer;
}

ChainRun measure_chain(const parallel::ChainPlan& plan) {
  RankState alone;
  const parallel::ChainPlan whole = parallel::plan_chain(
      plan.widths, plan.columns, 1, std::vector(plan.cuts.size(), parallel::MatrixSharding::whole));
  const Tensor one = parallel::run_chain(alone.context, nullptr, whole);
  std::vector<ChainRun> ranks(static_cast<size_t>(plan.ranks));
  with_ranks(plan.ranks, [&](comm::Communicator* world) {
    RankState state;
    parallel::TpCommunicator tp_comm(*world, std::chrono::minutes(1), nullptr);
    const uint64_t before = call_totals(world).bytes;
    const Tensor y = parallel::run_chain(state.context, &tp_comm, plan);
    ChainRun& run = ranks[static_cast<size_t>(world->rank())];
    run.bytes = call_totals(world).bytes - before;
    double apart = 0, size = 0;
    for (int64_t i = 0; i < y.count(); ++i) {
      apart += std::pow(y.as<double>()[i] - one.as<double>()[i], 2);
      size += std::pow(one.as<double>()[i], 2);
    }
    run.error = std::sqrt(apart / size);
  });
  ChainRun all = ranks[0];
  for (size_t r = 1; r < ranks.size(); ++r) {
    all.bytes += ranks[r].bytes;
    all.error = std::max(all.error, ranks[r].error);
  }
  return all;
}

}  // namespace esp::app
