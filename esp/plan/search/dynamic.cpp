// Dynamic programming. For every choice that fits, the recurrence over layers and stages (division.h; for equal devices
// the linear partition of the runtime) gives the pace of the best division: a lower bound that accounts for uneven
// layers. Choices are then estimated in the order of that bound, until the bound exceeds the best value.
#include <algorithm>

#include "esp/plan/search/evaluator.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

struct Candidate {
  Choice choice;
  double floor;
  ChoiceMemory weight;
};

void gather(Evaluator& evaluator, Choice& choice, size_t axis, std::vector<Candidate>& found) {
  const SearchProblem& problem = evaluator.problem();
  if (axis == problem.num_axes()) {
    ++evaluator.counts().considered;
    const ChoiceMemory weight = problem.weigh(choice);
    if (weight.fits) {
      found.push_back({choice, problem.divided_floor(choice, weight.memory_bytes), weight});
    } else {
      ++evaluator.counts().too_large;
    }
    return;
  }
  for (size_t value = 0; value < problem.axes()[axis].values.size(); ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (!problem.allowed(choice, axis + 1) || !problem.lightest(choice, axis + 1).fits) {
      ++evaluator.counts().subtrees;
    } else {
      gather(evaluator, choice, axis + 1, found);
    }
  }
  choice[axis] = 0;
}

}  // namespace

SearchResult search_dynamic(const SearchProblem& problem, const SearchOptions& options) {
  Evaluator evaluator(problem, options, false);
  std::vector<Candidate> candidates;
  Choice choice{};
  gather(evaluator, choice, 0, candidates);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.floor < b.floor; });
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& one = candidates[i];
    // For a Pareto front time matters for every value, so each choice is evaluated.
    if (!options.pareto && evaluator.cannot_improve({one.floor, one.floor}, one.weight)) {
      evaluator.counts().pruned += static_cast<int64_t>(candidates.size() - i);
      break;
    }
    evaluator.evaluate_weighed(one.choice, one.weight);
  }
  return evaluator.finish("dynamic", true);
}

}  // namespace esp::plan
