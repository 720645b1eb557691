#include "apps/espalier/dash_providers.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "apps/espalier/plan_inputs.h"
#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/plan/espalier_memory.h"
#include "esp/plan/report.h"
#include "esp/plan/simulate/collective.h"

namespace esp::app {
namespace {

// Largest group whose schedules are built, because some algorithms have long schedules. Traffic in larger groups counts
// as evenly distributed.
constexpr int kMaxMembers = 64;

// For each other member of the group: the fraction of this rank's sent bytes that goes to it. Computed from the
// algorithm's schedule.
std::vector<double> peer_shares(const std::string& op, const std::string& algorithm, int size, int rank) {
  if (size < 2 || size > kMaxMembers) return {};
  try {
    comm::CollectiveSpec problem;
    problem.op = comm::parse_op(op);
    problem.size = size;
    problem.count = static_cast<size_t>(size) * 1024;
    const auto schedules = plan::schedules_of(comm::find_algorithm(problem.op, algorithm), problem);
    std::vector<double> sent(static_cast<size_t>(size));
    double all = 0;
    for (const comm::Action& action : schedules.at(static_cast<size_t>(rank)).actions)
      if (action.type == comm::ActionType::send) {
        sent.at(static_cast<size_t>(action.peer)) += static_cast<double>(action.region.count);
        all += static_cast<double>(action.region.count);
      }
    if (all == 0) return {};
    for (double& part : sent) part /= all;
    return sent;
  } catch (const Error&) {
    return {};  // algorithms without a schedule, such as "fused", get an even distribution
  }
}

// The planner's estimate of memory by category and stage.
Json plan_of_run(const std::string& run_toml, int world) {
  const train::RunConfig config = train::parse_resolved_config(run_toml, "run.toml", train::UnknownKeys::refuse);
  const plan::ModelShape shape = shape_of_run(config);
  const plan::Policy policy = policy_of_run(config, world);
  if (!plan::has_espalier_memory(shape, policy))
    return {{"error", "the planner cannot compute the exact memory of this run"}};
  Json stages = Json::array();
  for (const plan::Memory& memory : plan::espalier_stage_memories(shape, policy))
    stages.push_back(plan::to_json(memory));
  return {{"policy", plan::describe(policy)}, {"stages", stages}};
}

}  // namespace

dash::DataProviders dash_data_providers() {
  return {plan_of_run, peer_shares};
}

}  // namespace esp::app
