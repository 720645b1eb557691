// Integer programming by branch and bound (Land and Doig 1960). The variables are the axes' values, one axis a level; a
// node is a beginning of a choice. Two relaxations bound what lies below it: time (the floor of the axes that are set,
// the others at their most favourable) and memory (the others at their most sparing). Children are visited in the order
// of their floors, so that a good choice is known soon and most of the tree is never opened.
#include <algorithm>

#include "esp/plan/search/inquiry.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

struct Child {
  double floor;
  uint8_t value;
  Weight lightest;
};

void branch(Inquiry& inquiry, Choice& choice, size_t axis) {
  const Problem& problem = inquiry.problem();
  if (axis == problem.num_axes()) {
    inquiry.ask_allowed(choice);
    return;
  }
  std::vector<Child> children;
  for (size_t value = 0; value < problem.axes()[axis].values.size(); ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (!problem.allowed(choice, axis + 1)) continue;
    const Weight lightest = problem.lightest(choice, axis + 1);
    if (!lightest.fits) {
      ++inquiry.counts().subtrees;
      continue;
    }
    children.push_back(
        {problem.floor(choice, axis + 1, lightest.memory_bytes).value, static_cast<uint8_t>(value), lightest});
  }
  std::stable_sort(children.begin(), children.end(), [](const Child& a, const Child& b) { return a.floor < b.floor; });
  for (const Child& child : children) {
    choice[axis] = child.value;
    if (inquiry.hopeless(choice, axis + 1, child.lightest)) {
      ++inquiry.counts().subtrees;
    } else {
      branch(inquiry, choice, axis + 1);
    }
  }
  choice[axis] = 0;
}

}  // namespace

SearchResult search_integer(const Problem& problem, const SearchOptions& options) {
  Inquiry inquiry(problem, options, false);
  Choice choice{};
  branch(inquiry, choice, 0);
  return inquiry.finish("integer", true);
}

}  // namespace esp::plan
