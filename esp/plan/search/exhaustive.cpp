// Exhaustive search, the reference for the other methods. It walks a tree with one axis per level. A branch ends if its
// partial choice breaks a rule, or if its lower bound of memory exceeds the capacity. A complete choice is first
// checked for memory. Threads take branches of the first axes in turn, each with its own result list. better() is a
// total order, so the merged result does not depend on the number of threads.
#include <atomic>
#include <thread>

#include "esp/plan/search/evaluator.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

void walk(Evaluator& evaluator, Choice& choice, size_t axis) {
  const SearchProblem& problem = evaluator.problem();
  if (axis == problem.num_axes()) {
    evaluator.evaluate_allowed(choice);
    return;
  }
  const size_t num_values = problem.axes()[axis].values.size();
  for (size_t value = 0; value < num_values; ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (problem.allowed(choice, axis + 1) && problem.least_memory(choice, axis + 1).fits) {
      walk(evaluator, choice, axis + 1);
    } else {
      ++evaluator.counts().subtrees;
    }
  }
  choice[axis] = 0;
}

// Collects all combinations of the first `depth` axes that satisfy the rules.
void begin(const SearchProblem& problem, Choice& choice, size_t axis, size_t depth, std::vector<Choice>& found) {
  if (axis == depth) {
    found.push_back(choice);
    return;
  }
  for (size_t value = 0; value < problem.axes()[axis].values.size(); ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (problem.allowed(choice, axis + 1)) begin(problem, choice, axis + 1, depth, found);
  }
  choice[axis] = 0;
}

constexpr size_t kSharedDepth = 4;  // the combinations of this many first axes are distributed over the threads

}  // namespace

SearchResult search_exhaustive(const SearchProblem& problem, const SearchOptions& options) {
  Evaluator whole(problem, options, false);
  if (options.threads <= 1) {
    Choice choice{};
    walk(whole, choice, 0);
    return whole.finish("exhaustive", true);
  }
  const size_t depth = std::min(kSharedDepth, problem.num_axes());
  std::vector<Choice> branches;
  Choice root{};
  begin(problem, root, 0, depth, branches);
  std::vector<Evaluator> parts(static_cast<size_t>(options.threads), Evaluator(problem, options, false));
  std::atomic<size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (Evaluator& part : parts)
      threads.emplace_back([&branches, &next, &part, depth] {
        for (size_t i = next++; i < branches.size(); i = next++) {
          Choice choice = branches[i];
          walk(part, choice, depth);
        }
      });
  }
  for (Evaluator& part : parts) whole.merge(std::move(part));
  return whole.finish("exhaustive", true);
}

}  // namespace esp::plan
