#include "apps/espalier/dash_knowledge.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "apps/espalier/plan_inputs.h"
#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/plan/own_memory.h"
#include "esp/plan/report.h"
#include "esp/plan/simulate/collective.h"

namespace esp::app {
namespace {

constexpr int kMostMembers = 64;  // beyond, schedules of some algorithms are long; members then share alike

// What a member sends to each other member, by the schedule itself.
std::vector<double> shares_of(const std::string& op, const std::string& algorithm, int size, int rank) {
  if (size < 2 || size > kMostMembers) return {};
  try {
    comm::CollectiveSpec problem;
    problem.op = comm::parse_op(op);
    problem.size = size;
    problem.count = static_cast<size_t>(size) * 1024;
    const auto schedules = plan::schedules_of(comm::find_algorithm(problem.op, algorithm), problem);
    std::vector<double> sent(static_cast<size_t>(size));
    double all = 0;
    for (const comm::Action& action : schedules.at(static_cast<size_t>(rank)).actions)
      if (action.act == comm::Act::send) {
        sent.at(static_cast<size_t>(action.peer)) += static_cast<double>(action.region.count);
        all += static_cast<double>(action.region.count);
      }
    if (all == 0) return {};
    for (double& part : sent) part /= all;
    return sent;
  } catch (const Error&) {
    return {};  // "fused" and the like: no schedule in the table; members share alike
  }
}

// Memory by category as the trainer counts it, by stage.
Json plan_of_run(const std::string& run_toml, int world) {
  const train::RunConfig config = train::parse_resolved_config(run_toml, "run.toml", train::UnknownKeys::refuse);
  const plan::ModelShape shape = shape_of_run(config);
  const plan::Policy policy = policy_of_run(config, world);
  if (!plan::has_own_memory(shape, policy)) return {{"error", "the planner has no byte-exact count for such a run"}};
  Json stages = Json::array();
  for (const plan::Memory& memory : plan::own_memories(shape, policy)) stages.push_back(plan::to_json(memory));
  return {{"policy", plan::describe(policy)}, {"stages", stages}};
}

}  // namespace

dash::Knowledge dash_knowledge() {
  return {plan_of_run, shares_of};
}

}  // namespace esp::app
