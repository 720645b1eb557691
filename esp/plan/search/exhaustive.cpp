// The reference. A tree of the axes is walked in their order; a rule broken by the first axes of a choice ends its
// branch, and so does a weight that nothing below it gets under; each choice that is left is weighed first. Threads
// take branches of the first axes in turn, each with its own lists; the order of `better` makes the merged answer the
// same for any number of them.
#include <atomic>
#include <thread>

#include "esp/plan/search/inquiry.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

void walk(Inquiry& inquiry, Choice& choice, size_t axis) {
  const Problem& problem = inquiry.problem();
  if (axis == problem.num_axes()) {
    inquiry.ask_allowed(choice);
    return;
  }
  const size_t num_values = problem.axes()[axis].values.size();
  for (size_t value = 0; value < num_values; ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (problem.allowed(choice, axis + 1) && problem.lightest(choice, axis + 1).fits) {
      walk(inquiry, choice, axis + 1);
    } else {
      ++inquiry.counts().subtrees;
    }
  }
  choice[axis] = 0;
}

// All allowed beginnings of so many axes.
void begin(const Problem& problem, Choice& choice, size_t axis, size_t depth, std::vector<Choice>& found) {
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

constexpr size_t kSharedDepth = 4;  // axes whose branches are handed out

}  // namespace

SearchResult search_exhaustive(const Problem& problem, const SearchOptions& options) {
  Inquiry whole(problem, options, false);
  if (options.threads <= 1) {
    Choice choice{};
    walk(whole, choice, 0);
    return whole.finish("exhaustive", true);
  }
  const size_t depth = std::min(kSharedDepth, problem.num_axes());
  std::vector<Choice> branches;
  Choice root{};
  begin(problem, root, 0, depth, branches);
  std::vector<Inquiry> parts(static_cast<size_t>(options.threads), Inquiry(problem, options, false));
  std::atomic<size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (Inquiry& part : parts)
      threads.emplace_back([&branches, &next, &part, depth] {
        for (size_t i = next++; i < branches.size(); i = next++) {
          Choice choice = branches[i];
          walk(part, choice, depth);
        }
      });
  }
  for (Inquiry& part : parts) whole.take(std::move(part));
  return whole.finish("exhaustive", true);
}

}  // namespace esp::plan
