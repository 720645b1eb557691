#include "esp/train/comm_stats.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace esp::train {
namespace {

// Calls f(group, stats) once for each communicator.
template <typename F>
void for_each_group(Engine& engine, const F& f) {
  const comm::Communicator* world = engine.job().ranks;
  if (world) f("world", world->stats());
  for (const parallel::MeshAxis axis : parallel::kMeshAxes)
    if (const comm::Communicator* group = engine.mesh().group(axis); group && group != world)
      f(parallel::name_of(axis), group->stats());
  for (const ParameterGroup& parameters : engine.parameter_groups())
    for (const sync::NamedGroup& group : parameters.strategy->groups()) f(group.name, group.comm->stats());
  for (const ParameterGroup& group : engine.parameter_groups()) f(engine.method(), group.strategy->messages());
  for (const auto& [name, group] : engine.pipeline_communicators()) f(name, group->stats());
}

}  // namespace

Json comm_rows(Engine& engine) {
  Json rows = Json::array();
  for_each_group(engine, [&](std::string_view group, const std::vector<comm::CallStats>& stats) {
    for (const comm::CallStats& s : stats)
      rows.push_back({{"group", group},
                      {"op", comm::name_of(s.op)},
                      {"algo", s.algorithm},
                      {"transport", s.transport},
                      {"calls", s.calls},
                      {"bytes_sent", s.bytes_sent},
                      {"bytes_received", s.bytes_received},
                      {"messages", s.messages},
                      {"ms", s.ms}});
  });
  return rows;
}

uint64_t bytes_sent(Engine& engine) {
  uint64_t sum = 0;
  for_each_group(engine, [&](std::string_view, const std::vector<comm::CallStats>& stats) {
    for (const comm::CallStats& s : stats) sum += s.bytes_sent;
  });
  return sum;
}

void StepTraffic::pause() {
  if (!paused_) total_ += bytes_sent(engine_) - begun_;
  paused_ = true;
}

void StepTraffic::resume() {
  if (paused_) begun_ = bytes_sent(engine_);
  paused_ = false;
}

double StepTraffic::take(int64_t step) {
  const double mean =
      static_cast<double>(total_ - taken_) / static_cast<double>(std::max<int64_t>(1, step - taken_step_));
  taken_ = total_;
  taken_step_ = step;
  return mean;
}

double StepTraffic::mean(int64_t step) const {
  return static_cast<double>(total_) / static_cast<double>(std::max<int64_t>(1, step - first_step_));
}

}  // namespace esp::train
