// Linear partition by dynamic programming. The cost of a partition is the cost of its most expensive part. best[j][q]
// is the minimal cost of splitting the first j units into q parts: min over i of max(best[i][q−1], cost(i..j)). Several
// partitions may have this cost, and some of them leave the last part nearly empty. A second pass selects the most even
// one.
#include "esp/parallel/pp/partition.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::parallel {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// best value for the first n units split into p parts, indexed [n][p]
using Table = std::vector<std::vector<double>>;

// `join(before, piece)`: value of a partition. `before` is the value of all parts but the last, `piece` the cost of the
// last part.
template <typename Join>
Table walk(const std::vector<double>& sums, int pieces, const Join& join) {
  const auto n = sums.size() - 1, last = static_cast<size_t>(pieces);
  Table best(n + 1, std::vector<double>(last + 1, kInfinite));
  best[0][0] = 0;
  for (size_t q = 1; q <= last; ++q)
    for (size_t j = q; j <= n; ++j)
      // Tries short last parts first and stops at the first one that alone costs too much: longer ones cost no less.
      for (size_t i = j; i-- > q - 1 && join(0, sums[j] - sums[i]) < best[j][q];)
        best[j][q] = std::min(best[j][q], join(best[i][q - 1], sums[j] - sums[i]));
  return best;
}

}  // namespace

std::vector<int> linear_partition(std::span<const double> costs, int pieces) {
  if (pieces < 1 || static_cast<size_t>(pieces) > costs.size())
    throw UsageError(fmt::format(
        "pipeline: got {} virtual stages; expected 1 to {}, the number of units of the model (stem, blocks, head)",
        pieces, costs.size()));
  std::vector<double> sums(costs.size() + 1, 0);
  for (size_t i = 0; i < costs.size(); ++i) sums[i + 1] = sums[i] + costs[i];

  const Table dearest = walk(sums, pieces, [](double before, double piece) { return std::max(before, piece); });
  const double limit = dearest.back().back();
  const auto squares = [&](double before, double piece) { return piece > limit ? kInfinite : before + piece * piece; };
  const Table evenest = walk(sums, pieces, squares);

  std::vector<int> cuts(static_cast<size_t>(pieces) + 1, 0);
  size_t j = costs.size();
  for (auto q = static_cast<size_t>(pieces); q > 0; --q) {
    cuts[q] = static_cast<int>(j);
    size_t i = q - 1;
    while (squares(evenest[i][q - 1], sums[j] - sums[i]) != evenest[j][q]) ++i;
    j = i;
  }
  return cuts;
}

double max_piece_cost(std::span<const double> costs, std::span<const int> cuts) {
  double most = 0;
  for (size_t q = 0; q + 1 < cuts.size(); ++q) {
    double sum = 0;
    for (int i = cuts[q]; i < cuts[q + 1]; ++i) sum += costs[static_cast<size_t>(i)];
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace esp::parallel
