// Labels for collective calls in stall reports: the name of the group, and the gradient bucket or unit that a call with
// this element count transfers. The labels are built in advance, because the thread of the stall detector reads them
// while training hangs.
#include <map>

#include <fmt/format.h>

#include "esp/sync/buckets.h"
#include "esp/train/run_monitor.h"

namespace esp::train {
namespace {

struct CallLabels {
  std::map<uint64_t, std::string> groups;  // name of a group by its id
  // Name of the bucket or unit with this element count. The counts are large, so two are rarely equal.
  std::map<uint64_t, std::string> moved;
};

std::string first_to_last(const std::vector<nn::Parameter*>& parameters) {
  const std::string &last = parameters.front()->name, &first = parameters.back()->name;
  return first == last ? first : fmt::format("{} to {}", first, last);
}

int64_t to_bytes(double mb) {
  return static_cast<int64_t>(mb * (1 << 20));
}

}  // namespace

comm::CallLabeler make_call_labeler(Engine& engine, const RunConfig& config) {
  CallLabels known;
  const auto call_it = [&](const comm::Communicator* group, const std::string& as) {
    if (!group) return;
    if (const auto id = comm::group_id_of(*group)) known.groups.emplace(*id, as);
  };
  call_it(engine.job().ranks, "all ranks");
  for (const parallel::MeshAxis axis : parallel::kMeshAxes)
    call_it(engine.mesh().group(axis), std::string(parallel::name_of(axis)));
  for (const ParameterGroup& parameters : engine.parameter_groups())
    for (const sync::NamedGroup& group : parameters.strategy->groups()) call_it(group.comm, std::string(group.name));
  for (const auto& [line, group] : engine.pipeline_communicators()) call_it(group, std::string(line));

  if (config.sync.method == "allreduce" && config.sync.buckets == "fixed")
    for (const sync::GradientBucket& bucket : sync::make_gradient_buckets(
             *engine.parameter_groups().front().parameters, to_bytes(config.sync.first_bucket_mb),
             to_bytes(config.sync.bucket_mb), storage_type(config.train.precision)))
      known.moved.emplace(static_cast<uint64_t>(bucket.count()), "gradients of " + first_to_last(bucket.parameters));
  for (const auto& unit : engine.parameter_groups().front().parameters->units())
    known.moved.emplace(static_cast<uint64_t>(unit.count), unit.name);
  return [known = std::move(known)](uint64_t group, const net::Tag& call) {
    const auto of = known.groups.find(group);
    const std::string name = of == known.groups.end() ? "" : of->second;
    const auto moved = known.moved.find(call.count);
    return moved == known.moved.end() ? name : fmt::format("{}{}{}", name, name.empty() ? "" : ", ", moved->second);
  };
}

}  // namespace esp::train
