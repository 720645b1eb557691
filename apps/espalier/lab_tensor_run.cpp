#include "apps/espalier/lab_tensor_run.h"

#include <cmath>

#include "esp/base/rng.h"
#include "esp/comm/communicator.h"
#include "esp/model/model.h"
#include "esp/net/inproc/threads.h"
#include "esp/parallel/regions.h"

namespace esp::app {

using tensor::Tensor;

namespace {

struct Room {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
};

// Rings send the fewest bytes for any size, as in the formulas.
void with_ranks(int size, const std::function<void(comm::Communicator*)>& body) {
  if (size == 1) return body(nullptr);
  net::run_threads(size, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.algorithms = "all_reduce=ring,all_gather=ring,reduce_scatter=ring";
    const auto comm = comm::make_communicator(world, world.everyone(), options);
    body(comm.get());
  });
}

struct Sent {
  uint64_t bytes = 0;
  std::map<comm::Op, int64_t> calls;
};

Sent sent_by(comm::Communicator* comm) {
  Sent sum;
  if (!comm) return sum;
  for (const comm::CallStats& one : comm->stats()) {
    sum.bytes += one.bytes_sent;
    sum.calls[one.op] += static_cast<int64_t>(one.calls);
  }
  return sum;
}

Tensor tokens(const Room& room, const TensorCase& it, uint64_t seed) {
  Tensor ids = tensor::empty(room.context, {it.batch, it.seq}, DType::i32, device::MemoryCategory::other);
  for (int64_t i = 0; i < ids.count(); ++i)
    ids.as<int32_t>()[i] =
        static_cast<int32_t>(random_bits(seed, 0, static_cast<uint64_t>(i)) % static_cast<uint64_t>(it.model.vocab));
  return ids;
}

struct Step {
  uint64_t bytes = 0;  // of all ranks
  std::map<comm::Op, int64_t> calls;
  uint64_t activations = 0;
  double loss = 0;
};

// One micro-batch of a model with `layers` layers.
Step run_step(TensorCase it, int64_t layers) {
  it.model.layers = layers;
  parallel::MeshShape shape;
  shape.tp = it.num_ranks;
  parallel::RegionOptions options;
  options.sequence = it.sequence;
  options.keep_gathered = it.keep_gathered;
  options.overlap = false;  // one call instead of several pieces
  std::vector<Step> steps(static_cast<size_t>(it.num_ranks));
  with_ranks(it.num_ranks, [&](comm::Communicator* world) {
    Room room;
    const parallel::Mesh mesh(shape, world);
    const auto regions = parallel::make_regions(mesh, options);
    autograd::Tape tape(room.context);
    model::ModelPart part;
    part.shares.tensor = {mesh.coordinates().tp, it.num_ranks};
    const auto model = model::make_model(it.model, part);
    model->parameters().materialize(room.context, DType::f32, true);
    model->parameters().initialise(1, room.context.stream);
    nn::ForwardContext pass;
    pass.tape = &tape;
    pass.training = true;
    pass.num_sequences = it.batch;
    pass.ops = regions.get();
    model::ModelBatch batch;
    batch.inputs = tokens(room, it, 3);
    batch.targets = tokens(room, it, 4);
    comm::Communicator* const line = mesh.group(parallel::MeshAxis::tensor);
    const Sent before = sent_by(line);
    const double scale = 1.0 / static_cast<double>(it.batch * it.seq);
    const autograd::Loss loss = model->forward(pass, batch, scale);
    Step& step = steps[static_cast<size_t>(mesh.coordinates().tp)];
    step.activations = room.account.use(device::MemoryCategory::activation).current;
    step.loss = tensor::item(loss.total.value()) * scale;
    autograd::backward(tape, loss);
    tape.clear();
    const Sent after = sent_by(line);
    step.bytes = after.bytes - before.bytes;
    for (const auto& [op, calls] : after.calls)
      step.calls[op] = calls - (before.calls.contains(op) ? before.calls.at(op) : 0);
  });
  Step all = steps[0];
  for (size_t r = 1; r < steps.size(); ++r) all.bytes += steps[r].bytes;
  return all;
}

}  // namespace

TensorLayer measure_layer(const TensorCase& it) {
  const Step one = run_step(it, 1), two = run_step(it, 2);
  TensorLayer layer;
  layer.bytes_per_rank = static_cast<double>(two.bytes - one.bytes) / it.num_ranks;
  for (const auto& [op, calls] : two.calls) layer.calls[op] = calls - one.calls.at(op);
  layer.kept_bytes = static_cast<double>(two.activations) - static_cast<double>(one.activations);
  layer.loss = one.loss;
  return layer;
}

ChainRun measure_chain(const parallel::ChainPlan& plan) {
  Room alone;
  const parallel::ChainPlan whole =
      parallel::plan_chain(plan.widths, plan.columns, 1, std::vector(plan.cuts.size(), parallel::MatrixCut::whole));
  const Tensor one = parallel::run_chain(alone.context, nullptr, whole);
  std::vector<ChainRun> ranks(static_cast<size_t>(plan.ranks));
  with_ranks(plan.ranks, [&](comm::Communicator* world) {
    Room room;
    parallel::TpCommunicator line(*world, std::chrono::minutes(1), nullptr);
    const uint64_t before = sent_by(world).bytes;
    const Tensor y = parallel::run_chain(room.context, &line, plan);
    ChainRun& run = ranks[static_cast<size_t>(world->rank())];
    run.bytes = sent_by(world).bytes - before;
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
