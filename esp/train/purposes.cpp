// What a call is for, told by its group and how many elements it moves: made beforehand, since the stall watch asks on
// a thread of its own when the run stands still.
#include <map>

#include <fmt/format.h>

#include "esp/sync/buckets.h"
#include "esp/train/guards.h"

namespace esp::train {
namespace {

struct Purposes {
  std::map<uint64_t, std::string> groups;  // names by id
  std::map<uint64_t, std::string> moved;   // by count: buckets and units are large, and no two of one size common
};

std::string first_to_last(const std::vector<nn::Parameter*>& parameters) {
  const std::string &last = parameters.front()->name, &first = parameters.back()->name;
  return first == last ? first : fmt::format("{} to {}", first, last);
}

int64_t to_bytes(double mb) {
  return static_cast<int64_t>(mb * (1 << 20));
}

}  // namespace

comm::CallLabeler purposes_of(Engine& engine, const RunConfig& config) {
  Purposes known;
  const auto call_it = [&](const comm::Communicator* group, const std::string& as) {
    if (!group) return;
    if (const auto id = comm::group_id_of(*group)) known.groups.emplace(*id, as);
  };
  call_it(engine.standing().ranks, "all ranks");
  for (const parallel::MeshAxis axis : parallel::kMeshAxes)
    call_it(engine.mesh().group(axis), std::string(parallel::name_of(axis)));
  for (const Holding& holding : engine.holdings())
    for (const sync::NamedGroup& group : holding.strategy->groups()) call_it(group.comm, std::string(group.name));
  for (const auto& [line, group] : engine.pipe_lines()) call_it(group, std::string(line));

  if (config.sync.method == "allreduce" && config.sync.buckets == "fixed")
    for (const sync::Bucket& bucket :
         sync::make_buckets(*engine.holdings().front().parameters, to_bytes(config.sync.first_bucket_mb),
                            to_bytes(config.sync.bucket_mb), storage_type(config.train.precision)))
      known.moved.emplace(static_cast<uint64_t>(bucket.count()), "gradients of " + first_to_last(bucket.parameters));
  for (const auto& unit : engine.holdings().front().parameters->units())
    known.moved.emplace(static_cast<uint64_t>(unit.count), unit.name);
  return [known = std::move(known)](uint64_t group, const net::Tag& call) {
    const auto of = known.groups.find(group);
    const std::string name = of == known.groups.end() ? "" : of->second;
    const auto moved = known.moved.find(call.count);
    return moved == known.moved.end() ? name : fmt::format("{}{}{}", name, name.empty() ? "" : ", ", moved->second);
  };
}

}  // namespace esp::train
