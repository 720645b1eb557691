#include "esp/train/snapshot.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"

namespace esp::train {
namespace {

// Calls f(parameter, state, values) for each parameter a flat state covers, with the slice of the state it owns.
template <typename F>
void for_each_parameter_state(Engine& engine, F&& f) {
  auto& units = engine.model().parameters().units();
  for (optim::State& state : engine.optimizer().states()) {
    for (nn::Parameter* p : units[static_cast<size_t>(state.range.unit)].parameters) {
      const int64_t begin = std::max(state.range.begin, p->offset);
      const int64_t end = std::min(state.range.end, p->offset + p->count());
      if (begin >= end) continue;
      ckpt::Piece piece;
      piece.name = fmt::format("optimizer.{}.{}", state.slot, p->name);
      piece.global_shape = p->shape;
      piece.first = begin - p->offset;
      piece.values = state.values.slice(begin - state.range.begin, end - state.range.begin);
      f(piece);
    }
  }
}

}  // namespace

ckpt::Piece piece_of(const nn::Parameter& parameter) {
  ckpt::Piece piece;
  piece.name = parameter.name;
  piece.global_shape = parameter.shape;
  piece.values = parameter.weight.value;
  return piece;
}

ckpt::Snapshot snapshot_of(Engine& engine, const RunConfig& config) {
  ckpt::Snapshot snapshot;
  snapshot.step = engine.num_steps();
  for (const nn::Parameter& p : engine.model().parameters().all()) snapshot.model.push_back(piece_of(p));
  for_each_parameter_state(engine, [&](ckpt::Piece& piece) { snapshot.optimizer.push_back(std::move(piece)); });
  snapshot.state = {{"step", engine.num_steps()},
                    {"optimizer", config.train.optimizer},
                    {"optimizer_steps", engine.optimizer().num_steps()},
                    {"next_sample", engine.next_sample()},
                    {"loss_scale", engine.loss_scale().scale()},
                    {"good_steps", engine.loss_scale().good_steps()},
                    {"seed", config.run.seed},
                    {"tokenizer", config.data.tokenizer},
                    {"run", to_toml(config)}};
  return snapshot;
}

void load_parameters(nn::ParameterList& parameters, const ckpt::Checkpoint& checkpoint) {
  for (const nn::Parameter& p : parameters.all()) checkpoint.read(piece_of(p));
}

void restore(Engine& engine, const RunConfig& config, const ckpt::Checkpoint& checkpoint) {
  const Json& state = checkpoint.state();
  if (!state.contains("optimizer")) {
    load_parameters(engine.model().parameters(), checkpoint);
    engine.optimizer().refresh_master();
    engine.resume_at(checkpoint.step());
    return;
  }
  if (const auto made_with = state.value("optimizer", std::string()); made_with != config.train.optimizer)
    throw UsageError(fmt::format("train.optimizer = {}: the checkpoint was made with {}; use that, or --resume none",
                                 config.train.optimizer, made_with));
  load_parameters(engine.model().parameters(), checkpoint);
  for_each_parameter_state(engine, [&](const ckpt::Piece& piece) { checkpoint.read(piece); });
  engine.optimizer().set_num_steps(state.at("optimizer_steps").get<int64_t>());
  engine.loss_scale().restore(state.at("loss_scale").get<double>(), state.at("good_steps").get<int64_t>());
  engine.resume_at(state.at("step").get<int64_t>());
}

}  // namespace esp::train
