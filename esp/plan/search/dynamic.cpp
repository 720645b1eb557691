// Dynamic programming. For every choice that fits, the recurrence over layers and stages (division.h, and for equal
// devices the linear partition the runtime uses) gives the pace of the best division: a floor that knows the uneven
// layers. Choices are then estimated in the order of that value, and the first that is worse than the best known ends
// it: everything after it is worse too.
#include <algorithm>

#include "esp/plan/search/inquiry.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

struct Candidate {
  Choice choice;
  double floor;
  Weight weight;
};

void gather(Inquiry& inquiry, Choice& choice, size_t axis, std::vector<Candidate>& found) {
  const Problem& problem = inquiry.problem();
  if (axis == problem.num_axes()) {
    ++inquiry.counts().considered;
    const Weight weight = problem.weigh(choice);
    if (weight.fits) {
      found.push_back({choice, problem.divided_floor(choice, weight.memory_bytes), weight});
    } else {
      ++inquiry.counts().too_large;
    }
    return;
  }
  for (size_t value = 0; value < problem.axes()[axis].values.size(); ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (!problem.allowed(choice, axis + 1) || !problem.lightest(choice, axis + 1).fits) {
      ++inquiry.counts().subtrees;
    } else {
      gather(inquiry, choice, axis + 1, found);
    }
  }
  choice[axis] = 0;
}

}  // namespace

SearchResult search_dynamic(const Problem& problem, const SearchOptions& options) {
  Inquiry inquiry(problem, options, false);
  std::vector<Candidate> candidates;
  Choice choice{};
  gather(inquiry, choice, 0, candidates);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.floor < b.floor; });
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& one = candidates[i];
    // For a front, time matters whatever the value: then each is asked about by itself.
    if (!options.pareto && inquiry.hopeless({one.floor, one.floor}, one.weight)) {
      inquiry.counts().pruned += static_cast<int64_t>(candidates.size() - i);
      break;
    }
    inquiry.ask_weighed(one.choice, one.weight);
  }
  return inquiry.finish("dynamic", true);
}

}  // namespace esp::plan
