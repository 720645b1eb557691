// Integer programming by branch and bound (Land and Doig 1960). The variables are the axes' values, one axis per level;
// a node is a partial choice. Two relaxations bound its subtree: time (the set axes, with the others at their best) and
// memory (the others at their smallest). Children are visited in the order of their bounds, so that a good choice is
// found early and most of the tree is never visited.
#include <algorithm>

#include "esp/plan/search/evaluator.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

struct Child {
  double floor;
  uint8_t value;
  ChoiceMemory lightest;
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
    const ChoiceMemory lightest = problem.lightest(choice, axis + 1);
    if (!lightest.fits) {
      ++evaluator.counts().subtrees;
      continue;
    }
    children.push_back(
        {problem.floor(choice, axis + 1, lightest.memory_bytes).value, static_cast<uint8_t>(value), lightest});
  }
  std::stable_sort(children.begin(), children.end(), [](const Child& a, const Child& b) { return a.floor < b.floor; });
  for (const Child& child : children) {
    choice[axis] = child.value;
    if (evaluator.cannot_improve(choice, axis + 1, child.lightest)) {
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
