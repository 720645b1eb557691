#include "esp/comm/preferences.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/plan_cache.h"

namespace esp::comm {

int algorithm_id_of(Op op, std::string_view name) {
  if (name == "auto") return kAutoAlgorithm;
  if (name == "fused") return kFusedAlgorithm;
  for (const AlgorithmRow& row : algorithms())
    if (row.op == op && row.name == name) return algorithm_id(row);
  std::vector<std::string_view> known = {"auto", "fused"};
  for (const AlgorithmRow* row : algorithms_for(op)) known.push_back(row->name);
  unknown_name(fmt::format("algorithm for {}", name_of(op)), name, known);
}

Preferences parse_preferences(std::string_view text) {
  Preferences preferences;
  preferences.fill(kAutoAlgorithm);
  while (!text.empty()) {
    std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      throw UsageError(
          fmt::format("algorithms: got \"{}\"; expected collective=algorithm, for example all_reduce=ring", item));
    Op op = parse_op(item.substr(0, equals));
    preferences[static_cast<size_t>(op)] = algorithm_id_of(op, item.substr(equals + 1));
  }
  return preferences;
}

}  // namespace esp::comm
