#include "esp/base/table.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"

namespace esp {
namespace {

// Edits with swapped neighbours counted as one, since that is how people mistype.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (std::string_view candidate : known) {
    const size_t longer = std::max(name.size(), candidate.size()), shorter = std::min(name.size(), candidate.size());
    if (longer - shorter >= best_distance) continue;  // that many edits at least
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

void unknown_name(std::string_view what, std::string_view name, const std::vector<std::string_view>& known) {
  std::string_view near = nearest_name(name, known);
  std::string hint = near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near);
  throw UsageError(fmt::format("unknown {} \"{}\"; {}Known: {}", what, name, hint, fmt::join(known, ", ")));
}

}  // namespace esp
