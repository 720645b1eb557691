#include "esp/train/own_state.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/autograd/functions/fp8_linear.h"
#include "esp/device/on_cuda.h"
#include "esp/kernel/cuda/fp8_codes.h"
#include "esp/parallel/mesh.h"

namespace esp::train {
namespace {

using parallel::MeshAxis;

// One thing that rank `row` of `rows` remembers; of what ranks share, the first writes and all read.
template <typename F>
void put_remembered(const sync::ExtraState& one, std::string_view what, std::string_view part, int row, int rows,
                    bool reading, F&& f) {
  const int64_t count = one.values.count();
  const std::string name = fmt::format("{}.{}.{}", what, one.name, part);
  if (count == 0 || (one.shared && !reading && row != 0)) return;
  if (one.whole > 0) return f(ckpt::Piece{name, {one.whole}, {one.first}, {count}, 0, one.values});
  if (one.shared) return f(ckpt::Piece{name, {count}, {}, {}, 0, one.values});
  f(ckpt::Piece{name, {rows, count}, {row, 0}, {1, count}, 0, one.values});
}

// What a strategy of equal copies remembers of exchanges: by rank, of which some may only serve.
template <typename F>
void for_each_memory(Engine& engine, bool reading, F&& f) {
  for (size_t i = 0; i < engine.holdings().size(); ++i)
    for (const sync::ExtraState& one : engine.holdings()[i].strategy->extra_state())
      put_remembered(one, "exchange", fmt::format("part-{}", i), engine.standing().rank(), engine.standing().size(),
                     reading, f);
}

// f(piece) for everything this rank has to itself.
template <typename F>
void for_each_own(Engine& engine, bool reading, F&& f) {
  const int copy = engine.mesh().index(MeshAxis::replicas), copies = engine.mesh().size(MeshAxis::replicas);
  const std::string part = fmt::format("part-{}", engine.mesh().index(MeshAxis::model));
  const auto row = [&](const std::string& name, int64_t first, int64_t count, int64_t all, tensor::Tensor values) {
    f(ckpt::Piece{
        fmt::format("copies.{}.{}", name, part), {copies, all}, {copy, first}, {1, count}, 0, std::move(values)});
  };
  Holding& holding = engine.holdings().front();
  for (const sync::ExtraState& one : holding.strategy->divergent_replicas()->extra_state())
    put_remembered(one, "copies", part, copy, copies, reading, f);
  for (const optim::OptimizerState& state : holding.optimizer->states()) {
    const auto& unit = holding.parameters->units()[static_cast<size_t>(state.range.unit)];
    row("optimizer." + std::string(state.slot), unit.first + state.range.begin, state.range.end - state.range.begin,
        holding.parameters->count(), state.values);
  }
}

// Memories fit who exchanges the same in the same way.
Json exchange_description(const Engine& engine, const SyncSection& sync) {
  return {{"ranks", engine.standing().size()},
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

// Scales of 8-bit products are of what a rank saw: they fit who divides the model and the batch alike.
class Scales {
 public:
  explicit Scales(Engine& engine) : stream_(engine.context().stream) {
    if (!device::on_cuda(stream_) || !kernel::cuda::wants_fp8(stream_)) return;
    for (nn::ParameterList* list : {&engine.model().parameters(), engine.model().experts()})
      if (list)
        for (const nn::Parameter& p : list->all()) weights_.push_back(&p.weight);
    const int64_t count = std::ssize(weights_) * autograd::scale_numbers();
    piece_ = {fmt::format("scales.rank-{}", engine.standing().rank()),
              {count},
              {},
              {},
              0,
              tensor::empty(engine.host(), {count}, DType::f32, device::MemoryCategory::other)};
    description_ = {{"ranks", engine.standing().size()}, {"layout", engine.mesh().shape().text()}};
  }

  void add_to(ckpt::Snapshot& snapshot) {
    if (weights_.empty()) return;
    autograd::save_scales(piece_.values.as<float>(), weights_, stream_);
    snapshot.optimizer.push_back(piece_);
    snapshot.state["scales"] = description_;
  }
  void restore(const ckpt::Checkpoint& checkpoint) {
    if (weights_.empty() || !checkpoint.state().contains("scales") || checkpoint.state().at("scales") != description_)
      return;  // they are looked for anew
    checkpoint.read(piece_);
    autograd::load_scales(piece_.values.as<float>(), weights_, stream_);
  }

 private:
  const device::Stream stream_;
  std::vector<const autograd::Weight*> weights_;  // none: no products in 8 bits
  ckpt::Piece piece_;
  Json description_;
};

}  // namespace

void add_own_state(ckpt::Snapshot& snapshot, Engine& engine, const SyncSection& sync) {
  Scales(engine).add_to(snapshot);
  sync::DivergentReplicas* divergent = engine.strategy().divergent_replicas();
  if (!divergent) {
    if (sync.compress == "none") return;
    for_each_memory(engine, false, [&](ckpt::Piece piece) { snapshot.optimizer.push_back(std::move(piece)); });
    snapshot.state["exchange"] = exchange_description(engine, sync);
    return;
  }
  // The model is the mean: a longer copy of one copy's values would be taken for it.
  if (!divergent->equal())
    std::erase_if(snapshot.optimizer,
                  [](const ckpt::Piece& piece) { return piece.name.starts_with("optimizer.master."); });
  for_each_own(engine, false, [&](ckpt::Piece piece) { snapshot.optimizer.push_back(std::move(piece)); });
  snapshot.state["copies"] = description(engine, sync);
}

std::string load_own_state(Engine& engine, const SyncSection& sync, const ckpt::Checkpoint& checkpoint) {
  Scales(engine).restore(checkpoint);
  sync::DivergentReplicas* divergent = engine.strategy().divergent_replicas();
  const Json& state = checkpoint.state();
  const auto read = [&](const ckpt::Piece& piece) { checkpoint.read(piece); };
  const char* const anew = "the checkpoint has no errors of these exchanges: they begin at 0";
  if (!divergent) {
    if (sync.compress == "none") return {};
    if (!state.contains("exchange") || state.at("exchange") != exchange_description(engine, sync)) return anew;
    for_each_memory(engine, true, read);
    return {};
  }
  if (!state.contains("copies")) return sync.compress == "none" ? "" : anew;
  const Json& of = state.at("copies");
  Json here = description(engine, sync);
  here["equal"] = of.at("equal");
  if (here != of) return sync.compress == "none" ? "" : anew;
  divergent->resume_at(engine.num_steps(), of.at("equal").get<bool>());
  for_each_own(engine, true, read);
  return {};
}

}  // namespace esp::train
