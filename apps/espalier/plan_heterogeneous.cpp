#include "apps/espalier/plan_heterogeneous.h"

#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/output_file.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/plan/report.h"
#include "esp/plan/search/mixed.h"
#include "esp/plan/search/space.h"

namespace esp::app {
namespace {

plan::Cluster pool_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  PlanInputs inputs;
  inputs.cluster = text.substr(0, colon);
  int count = 0;
  const char* end = text.data() + text.size();
  if (colon == std::string::npos || std::from_chars(text.data() + colon + 1, end, count).ptr != end || count < 1)
    throw UsageError(fmt::format("--also: got {}; expected CLUSTER:N, for example dgx-1:16", text));
  inputs.gpus = count;
  std::vector<std::string> assumed;
  return plan_cluster(inputs, assumed);
}

Json json_of(const plan::MixedPlan& found, const std::vector<plan::Cluster>& pools) {
  Json stages = Json::array();
  for (size_t k = 0; k < found.pool_of_stage.size(); ++k)
    stages.push_back({{"layers", found.policy.stage_layers[k]},
                      {"processor", pools[static_cast<size_t>(found.pool_of_stage[k])].processor.name},
                      {"memory_bytes", found.stages[k].total()}});
  return {{"method", "dynamic"},
          {"step_s", found.step_s},
          {"ideal_s", found.bubble_free_s},
          {"layout", plan::to_json(found.policy)},
          {"stages", stages}};
}

}  // namespace

int run_heterogeneous_search(const PlanInputs& inputs, const std::vector<std::string>& also, const std::string& json) {
  const ResolvedPlan planned = read_plan_inputs(inputs);
  std::vector<plan::Cluster> pools = {planned.cluster};
  for (const std::string& one : also) pools.push_back(pool_of(one));
  const plan::SearchSpace space =
      plan::full_search_space(planned.shape, planned.cluster, planned.policy, {planned.cluster.size()});
  const auto found = plan::plan_mixed(planned.shape, pools, planned.policy, space.micro_batch);
  if (!found)
    throw UsageError(
        fmt::format("{}: no pipeline over these devices fits in their memory. Add devices", planned.shape.name));
  if (json != "-") {
    std::vector<Cells> rows;
    for (size_t k = 0; k < found->pool_of_stage.size(); ++k) {
      const plan::Cluster& pool = pools[static_cast<size_t>(found->pool_of_stage[k])];
      rows.push_back({std::to_string(k), std::to_string(found->policy.stage_layers[k]), pool.processor.name,
                      fmt::format("{} of {}", plan::gigabytes(found->stages[k].total()),
                                  plan::gigabytes(pool.processor.memory_bytes))});
    }
    fmt::print("{}: step {}; without idle time {}\n\n{}", plan::describe(found->policy), plan::seconds(found->step_s),
               plan::seconds(found->bubble_free_s), text_table({"stage", "layers", "device", "memory"}, rows));
  }
  if (!json.empty()) write_file(json, json_of(*found, pools).dump(2) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace esp::app
