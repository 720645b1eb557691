#include "esp/train/own_state.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/parallel/mesh.h"

namespace esp::train {
namespace {

using parallel::Axis;

// f(piece) for everything this rank has to itself; of what copies share, the first writes and all read.
template <typename F>
void for_each_own(Engine& engine, bool reading, F&& f) {
  const int copy = engine.mesh().index(Axis::copies), copies = engine.mesh().size(Axis::copies);
  const std::string part = fmt::format("part-{}", engine.mesh().index(Axis::model));
  const auto row = [&](const std::string& name, int64_t first, int64_t count, int64_t all, tensor::Tensor values) {
    f(ckpt::Piece{
        fmt::format("copies.{}.{}", name, part), {copies, all}, {copy, first}, {1, count}, 0, std::move(values)});
  };
  Holding& holding = engine.holdings().front();
  for (const sync::Remembered& one : holding.strategy->apart()->remembered()) {
    const int64_t count = one.values.count();
    if (!one.shared) {
      row(std::string(one.name), 0, count, count, one.values);
    } else if (reading || copy == 0) {
      f(ckpt::Piece{fmt::format("copies.{}.{}", one.name, part), {count}, {}, {}, 0, one.values});
    }
  }
  for (const optim::State& state : holding.optimizer->states()) {
    const auto& unit = holding.parameters->units()[static_cast<size_t>(state.range.unit)];
    row("optimizer." + std::string(state.slot), unit.first + state.range.begin, state.range.end - state.range.begin,
        holding.parameters->count(), state.values);
  }
}

Json description(Engine& engine, const std::string& method) {
  return {{"count", engine.mesh().size(Axis::copies)},
          {"layout", engine.mesh().shape().text()},
          {"method", method},
          {"equal", engine.strategy().apart()->equal()}};
}

}  // namespace

void add_own_state(ckpt::Snapshot& snapshot, Engine& engine) {
  sync::Apart* apart = engine.strategy().apart();
  if (!apart) return;
  // The model is the mean: a longer copy of one copy's values would be taken for it.
  if (!apart->equal())
    std::erase_if(snapshot.optimizer,
                  [](const ckpt::Piece& piece) { return piece.name.starts_with("optimizer.master."); });
  for_each_own(engine, false, [&](ckpt::Piece piece) { snapshot.optimizer.push_back(std::move(piece)); });
  snapshot.state["copies"] = description(engine, engine.method());
}

void load_own_state(Engine& engine, const ckpt::Checkpoint& checkpoint) {
  sync::Apart* apart = engine.strategy().apart();
  const Json& state = checkpoint.state();
  if (!apart || !state.contains("copies")) return;
  const Json& of = state.at("copies");
  Json here = description(engine, engine.method());
  here["equal"] = of.at("equal");
  if (here != of) return;
  apart->go_on_at(engine.num_steps(), of.at("equal").get<bool>());
  for_each_own(engine, true, [&](const ckpt::Piece& piece) { checkpoint.read(piece); });
}

}  // namespace esp::train
