// Integer programming by branch and bound (Land and Doig 1960). The variables are the values of the axes, one axis per
// level of the tree; a node is a partial choice. Two relaxations bound a subtree: its time, with the remaining axes at
// their fastest values, and its memory, with the remaining axes at their smallest. Children are visited in the order of
// their bounds. So a good choice is found early and most of the tree is pruned.
#include <algorithm>

#include "esp/plan/search/evaluator.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

struct Child {
  double lower_bound;
  uint8_t value;
  ChoiceMemory least_memory;
};

void branch(Evaluator& evaluator, Choice& choice, size_t axis) {
  const SearchProblem& problem = evaluator.problem();
  if (axis == problem.num_axes()) {
    evaluator.evaluate_allowed(choice);
    return;
  }
  std::vector<Child> children;
  for (size_t value = 0; value < problem.axes()[axis].values.size(); ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (!problem.allowed(choice, axis + 1)) continue;
    const ChoiceMemory least_memory = problem.least_memory(choice, axis + 1);
    if (!least_memory.fits) {
      ++evaluator.counts().subtrees;
      continue;
    }
    children.push_back({problem.lower_bound(choice, axis + 1, least_memory.memory_bytes).value,
                        static_cast<uint8_t>(value), least_memory});
  }
  std::stable_sort(children.begin(), children.end(),
                   [](const Child& a, const Child& b) { return a.lower_bound < b.lower_bound; });
  for (const Child& child : children) {
    choice[axis] = child.value;
    if (evaluator.cannot_improve(choice, axis + 1, child.least_memory)) {
      ++evaluator.counts().subtrees;
    } else {
      branch(evaluator, choice, axis + 1);
    }
  }
  choice[axis] = 0;
}

}  // namespace

SearchResult search_integer(const SearchProblem& problem, const SearchOptions& options) {
  Evaluator evaluator(problem, options, false);
  Choice choice{};
  branch(evaluator, choice, 0);
  return evaluator.finish("integer", true);
}

}  // namespace esp::plan
