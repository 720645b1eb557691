// Simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983): one choice that takes a step to a neighbour if it is
// lower, and with the probability exp(−Δ/T) if it is not; heights are logarithms, so T is a relative worsening. Begun
// anew from several places, each cooled and then descended.
#include <cmath>

#include "esp/plan/search/draws.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

constexpr int kBegun = 24;
constexpr double kHot = 0.5, kCold = 0.005;
constexpr double kTwoAxes = 0.3;  // of the steps change two

void anneal(Inquiry& inquiry, Rules& rules, Draws& draws, int64_t steps) {
  const Problem& problem = inquiry.problem();
  Choice here, best;
  if (!random_choice(rules, here, draws)) return;
  double low = height(inquiry.ask(here)), lowest = low;
  best = here;
  const double cooling = std::pow(kCold / kHot, 1.0 / static_cast<double>(std::max<int64_t>(1, steps)));
  double temperature = kHot;
  for (int64_t i = 0; i < steps; ++i, temperature *= cooling) {
    Choice there = here;
    for (int change = draws.unit() < kTwoAxes ? 2 : 1; change > 0; --change) {
      const size_t axis = draws.below(problem.num_axes());
      there[axis] = static_cast<uint8_t>(draws.below(problem.axes()[axis].values.size()));
    }
    if (!repair(rules, there, draws)) continue;
    const double at = height(inquiry.ask(there));
    if (at > low && draws.unit() >= std::exp((low - at) / temperature)) continue;
    here = there;
    low = at;
    if (low < lowest) lowest = low, best = here;
  }
  descend(inquiry, best);
}

}  // namespace

SearchResult search_annealing(const Problem& problem, const SearchOptions& options) {
  Inquiry inquiry(problem, options, true);
  Rules rules(problem);
  const int64_t most = budget(problem, options);
  for (int i = 0; i < kBegun && inquiry.counts().considered < most; ++i) {
    Draws draws(options.seed, 100 + static_cast<uint64_t>(i));
    anneal(inquiry, rules, draws, most / kBegun);
  }
  return inquiry.finish("annealing", false);
}

}  // namespace esp::plan
