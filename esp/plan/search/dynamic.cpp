// Dynamic programming. Every choice that fits gets a lower bound that accounts for uneven layers. The bound comes from
// the pace of the best division, which the recurrence over layers and stages gives (division.h; for equal devices the
// runtime's linear partition). Choices are then estimated in the order of their bounds, until the bound exceeds the
// best value.
#include <algorithm>

#include "esp/plan/search/evaluator.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

struct Candidate {
  Choice choice;
  double lower_bound;
  ChoiceMemory memory;
};

void gather(Evaluator& evaluator, Choice& choice, size_t axis, std::vector<Candidate>& found) {
  const SearchProblem& problem = evaluator.problem();
  if (axis == problem.num_axes()) {
    ++evaluator.counts().considered;
    const ChoiceMemory memory = problem.choice_memory(choice);
    if (memory.fits) {
      found.push_back({choice, problem.division_lower_bound(choice, memory.memory_bytes), memory});
    } else {
      ++evaluator.counts().too_large;
    }
    return;
  }
  for (size_t value = 0; value < problem.axes()[axis].values.size(); ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (!problem.allowed(choice, axis + 1) || !problem.least_memory(choice, axis + 1).fits) {
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
                   [](const Candidate& a, const Candidate& b) { return a.lower_bound < b.lower_bound; });
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& one = candidates[i];
    // Without a Pareto front, the search ends at the first bound that cannot improve the result. A Pareto front needs
    // the time of every choice.
    if (!options.pareto && evaluator.cannot_improve({one.lower_bound, one.lower_bound}, one.memory)) {
      evaluator.counts().pruned += static_cast<int64_t>(candidates.size() - i);
      break;
    }
    evaluator.evaluate_fitting(one.choice, one.memory);
  }
  return evaluator.finish("dynamic", true);
}

}  // namespace esp::plan
