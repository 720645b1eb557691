// Simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983). The current choice moves to a random neighbour if the
// neighbour has a lower cost, otherwise with probability exp(−Δ/T). Costs are logarithms, so T is a relative increase
// of the value. Several annealing runs start from random choices; each run lowers T and ends with a descent.
#include <cmath>

#include "esp/plan/search/methods.h"
#include "esp/plan/search/random_choice.h"

namespace esp::plan {
namespace {

constexpr int kBegun = 24;
constexpr double kHot = 0.5, kCold = 0.005;
constexpr double kTwoAxes = 0.3;  // fraction of moves that change two axes

void anneal(Evaluator& evaluator, RuleCache& rules, RandomStream& random, int64_t steps) {
  const SearchProblem& problem = evaluator.problem();
  Choice here, best;
  if (!random_choice(rules, here, random)) return;
  double low = search_cost(evaluator.evaluate(here)), lowest = low;
  best = here;
  const double cooling = std::pow(kCold / kHot, 1.0 / static_cast<double>(std::max<int64_t>(1, steps)));
  double temperature = kHot;
  for (int64_t i = 0; i < steps; ++i, temperature *= cooling) {
    Choice there = here;
    for (int change = random.unit() < kTwoAxes ? 2 : 1; change > 0; --change) {
      const size_t axis = random.below(problem.num_axes());
      there[axis] = static_cast<uint8_t>(random.below(problem.axes()[axis].values.size()));
    }
    if (!repair(rules, there, random)) continue;
    const double at = search_cost(evaluator.evaluate(there));
    if (at > low && random.unit() >= std::exp((low - at) / temperature)) continue;
    here = there;
    low = at;
    if (low < lowest) lowest = low, best = here;
  }
  descend(evaluator, best);
}

}  // namespace

SearchResult search_annealing(const SearchProblem& problem, const SearchOptions& options) {
  Evaluator evaluator(problem, options, true);
  RuleCache rules(problem);
  const int64_t most = budget(problem, options);
  for (int i = 0; i < kBegun && evaluator.counts().considered < most; ++i) {
    RandomStream random(options.seed, 100 + static_cast<uint64_t>(i));
    anneal(evaluator, rules, random, most / kBegun);
  }
  return evaluator.finish("annealing", false);
}

}  // namespace esp::plan
