#include "esp/base/table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"

namespace esp {
namespace {

// Edit distance in which a swap of adjacent letters counts as one edit (Damerau-Levenshtein). Returns `limit` if the
// distance is at least `limit`.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  // rows of the cost table for three consecutive prefixes of a
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), cost(b.size() + 1);
  std::iota(cost.begin(), cost.end(), size_t{0});
  size_t least = 0;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(cost);
    cost[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[j] = std::min({last[j] + 1, cost[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[j] = std::min(cost[j], before[j - 2] + 1);
    }
    // Every edit path passes through this row or the previous one. If both exceed the limit, the distance does too.
    const size_t least_before = std::exchange(least, *std::min_element(cost.begin(), cost.end()));
    if (std::min(least, least_before) >= limit) return limit;
  }
  return std::min(limit, cost[b.size()]);
}

}  // namespace

std::string_view nearest_name(std::string_view name, const std::vector<std::string_view>& known) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (std::string_view candidate : known) {
    const size_t longer = std::max(name.size(), candidate.size()), shorter = std::min(name.size(), candidate.size());
    // the difference of the lengths is a lower bound of the edit distance
    if (longer - shorter >= best_distance) continue;
    const size_t distance = edit_distance(name, candidate, best_distance);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

void unknown_name(std::string_view what, std::string_view name, const std::vector<std::string_view>& known) {
  std::string_view near = nearest_name(name, known);
  const std::string hint = near.empty() ? "known" : fmt::format("did you mean \"{}\"? Known", near);
  throw UsageError(fmt::format("unknown {} \"{}\"; {}: {}", what, name, hint, fmt::join(known, ", ")));
}

}  // namespace esp
