#include "esp/train/rank_state.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/autograd/functions/fp8_linear.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/fp8_encode.h"
#include "esp/parallel/mesh.h"

namespace esp::train {
namespace {

using parallel::MeshAxis;

// Calls f for one extra state. Each rank has one row of a tensor with `rows` rows; this rank has row `row`. A state
// that all ranks share is written by the first rank and read by all.
template <typename F>
void visit_extra_state(const sync::ExtraState& one, std::string_view what, std::string_view part, int row, int rows,
                       bool reading, F&& f) {
  const int64_t count = one.values.count();
  const std::string name = fmt::format("{}.{}.{}", what, one.name, part);
  if (count == 0 || (one.shared && !reading && row != 0)) return;
  if (one.whole > 0) return f(ckpt::TensorSlice{name, {one.whole}, {one.first}, {count}, 0, one.values});
  if (one.shared) return f(ckpt::TensorSlice{name, {count}, {}, {}, 0, one.values});
  f(ckpt::TensorSlice{name, {rows, count}, {row, 0}, {1, count}, 0, one.values});
}

// Calls f(slice) for the compression state of each rank, when replicas are equal. Rows are numbered by rank of the job,
// because some ranks may be servers only.
template <typename F>
void for_each_exchange_state(Engine& engine, bool reading, F&& f) {
  for (size_t i = 0; i < engine.parameter_groups().size(); ++i)
    for (const sync::ExtraState& one : engine.parameter_groups()[i].strategy->extra_state())
      visit_extra_state(one, "exchange", fmt::format("part-{}", i), engine.job().rank(), engine.job().size(), reading,
                        f);
}

// Calls f(slice) for each state that only this replica has.
template <typename F>
void for_each_replica_state(Engine& engine, bool reading, F&& f) {
  const int replica = engine.mesh().index(MeshAxis::replicas), num_replicas = engine.mesh().size(MeshAxis::replicas);
  const std::string part = fmt::format("part-{}", engine.mesh().index(MeshAxis::model));
  const auto row = [&](const std::string& name, int64_t first, int64_t count, int64_t all, tensor::Tensor values) {
    f(ckpt::TensorSlice{fmt::format("copies.{}.{}", name, part),
                        {num_replicas, all},
                        {replica, first},
                        {1, count},
                        0,
                        std::move(values)});
  };
  ParameterGroup& group = engine.parameter_groups().front();
  for (const sync::ExtraState& one : group.strategy->divergent_replicas()->extra_state())
    visit_extra_state(one, "copies", part, replica, num_replicas, reading, f);
  for (const optim::OptimizerState& state : group.optimizer->states()) {
    const auto& unit = group.parameters->units()[static_cast<size_t>(state.range.unit)];
    row("optimizer." + std::string(state.slot), unit.first + state.range.begin, state.range.end - state.range.begin,
        group.parameters->count(), state.values);
  }
}

// Describes the gradient exchanges. A stored compression state is reused only if its description is equal.
Json exchange_description(const Engine& engine, const SyncSection& sync) {
  return {{"ranks", engine.job().size()},
          {"method", sync.method},
          {"compress", sync.compress},
          {"feedback", sync.feedback},
          {"bucket_mb", sync.bucket_mb},
          {"first_bucket_mb", sync.first_bucket_mb},
          {"servers", sync.ps.servers},
          {"server_ranks", sync.ps.server_ranks},
          {"partition_mb", sync.ps.partition_mb},
          {"update", sync.ps.update}};
}

Json description(Engine& engine, const SyncSection& sync) {
  Json all = {{"count", engine.mesh().size(MeshAxis::replicas)},
              {"layout", engine.mesh().shape().text()},
              {"method", sync.method},
              {"equal", engine.strategy().divergent_replicas()->equal()}};
  if (sync.compress != "none") all["exchange"] = exchange_description(engine, sync);
  return all;
}

// Saves and loads FP8 scales. They depend on what the rank has computed, so they are reused only with the same ranks
// and layout.
class Fp8Scales {
 public:
  explicit Fp8Scales(Engine& engine) : stream_(engine.context().stream) {
    if (!device::is_cuda(stream_) || !kernel::cuda::uses_fp8(stream_)) return;
    for (nn::ParameterList* list : {&engine.model().parameters(), engine.model().experts()})
      if (list)
        for (const nn::Parameter& p : list->all()) weights_.push_back(&p.weight);
    const int64_t count = std::ssize(weights_) * autograd::scale_state_size();
    slice_ = {fmt::format("scales.rank-{}", engine.job().rank()),
              {count},
              {},
              {},
              0,
              tensor::empty(engine.host(), {count}, DType::f32, device::MemoryCategory::other)};
    description_ = {{"ranks", engine.job().size()}, {"layout", engine.mesh().shape().text()}};
  }

  void add_to(ckpt::Snapshot& snapshot) {
    if (weights_.empty()) return;
    autograd::save_scales(slice_.values.as<float>(), weights_, stream_);
    snapshot.optimizer.push_back(slice_);
    snapshot.state["scales"] = description_;
  }
  void restore(const ckpt::Checkpoint& checkpoint) {
    if (weights_.empty() || !checkpoint.state().contains("scales") || checkpoint.state().at("scales") != description_)
      return;  // not reused: the scales are then calibrated again
    checkpoint.read(slice_);
    autograd::load_scales(slice_.values.as<float>(), weights_, stream_);
  }

 private:
  const device::Stream stream_;
  std::vector<const autograd::Weight*> weights_;  // empty if there are no FP8 GEMMs
  ckpt::TensorSlice slice_;
  Json description_;
};

}  // namespace

void add_rank_state(ckpt::Snapshot& snapshot, Engine& engine, const SyncSection& sync) {
  Fp8Scales(engine).add_to(snapshot);
  sync::DivergentReplicas* divergent = engine.strategy().divergent_replicas();
  if (!divergent) {
    if (sync.compress == "none") return;
    for_each_exchange_state(engine, false,
                            [&](ckpt::TensorSlice slice) { snapshot.optimizer.push_back(std::move(slice)); });
    snapshot.state["exchange"] = exchange_description(engine, sync);
    return;
  }
  // The model in this checkpoint is the mean of the replicas. The master weights of a single replica do not belong to
  // it, so they are not stored.
  if (!divergent->equal())
    std::erase_if(snapshot.optimizer,
                  [](const ckpt::TensorSlice& slice) { return slice.name.starts_with("optimizer.master."); });
  for_each_replica_state(engine, false,
                         [&](ckpt::TensorSlice slice) { snapshot.optimizer.push_back(std::move(slice)); });
  snapshot.state["copies"] = description(engine, sync);
}

std::string load_rank_state(Engine& engine, const SyncSection& sync, const ckpt::Checkpoint& checkpoint) {
  Fp8Scales(engine).restore(checkpoint);
  sync::DivergentReplicas* divergent = engine.strategy().divergent_replicas();
  const Json& state = checkpoint.state();
  const auto read = [&](const ckpt::TensorSlice& slice) { checkpoint.read(slice); };
  const char* const restarted =
      "the checkpoint has no error-feedback state for these compression settings: error feedback starts at 0";
  if (!divergent) {
    if (sync.compress == "none") return {};
    if (!state.contains("exchange") || state.at("exchange") != exchange_description(engine, sync)) return restarted;
    for_each_exchange_state(engine, true, read);
    return {};
  }
  if (!state.contains("copies")) return sync.compress == "none" ? "" : restarted;
  const Json& of = state.at("copies");
  Json here = description(engine, sync);
  here["equal"] = of.at("equal");
  if (here != of) return sync.compress == "none" ? "" : restarted;
  divergent->resume_at(engine.num_steps(), of.at("equal").get<bool>());
  for_each_replica_state(engine, true, read);
  return {};
}

}  // namespace esp::train
