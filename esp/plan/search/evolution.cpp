// A population of choices: parents by tournament, children by uniform crossing and mutation, the rules repaired, the
// best kept. The best of each era ends with a descent; eras begin anew until several in a row bring nothing better.
#include <algorithm>

#include "esp/plan/search/draws.h"
#include "esp/plan/search/methods.h"

namespace esp::plan {
namespace {

constexpr size_t kPopulation = 128, kTournament = 3, kKept = 4;
constexpr int kStaleEras = 8, kStaleGenerations = 20;

struct Member {
  Choice choice{};
  double height = kNever;
};

const Member& parent(const std::vector<Member>& members, Draws& draws) {
  const Member* best = &members[draws.below(members.size())];
  for (size_t i = 1; i < kTournament; ++i) {
    const Member& other = members[draws.below(members.size())];
    if (other.height < best->height) best = &other;
  }
  return *best;
}

Choice child_of(const Problem& problem, const Member& a, const Member& b, Draws& draws) {
  Choice child = a.choice;
  const double mutation = 1.5 / static_cast<double>(problem.num_axes());
  for (size_t axis = 0; axis < problem.num_axes(); ++axis) {
    if (draws.unit() < 0.5) child[axis] = b.choice[axis];
    if (draws.unit() < mutation) child[axis] = static_cast<uint8_t>(draws.below(problem.axes()[axis].values.size()));
  }
  return child;
}

double era(Inquiry& inquiry, Rules& rules, Draws& draws, int64_t most) {
  const Problem& problem = inquiry.problem();
  std::vector<Member> members;
  Choice choice;
  while (members.size() < kPopulation && random_choice(rules, choice, draws))
    members.push_back({choice, height(inquiry.ask(choice))});
  if (members.size() < kPopulation) return kNever;  // no choice keeps the rules
  const auto lower = [](const Member& a, const Member& b) { return a.height < b.height; };
  double best = kNever;
  for (int stale = 0; stale < kStaleGenerations && inquiry.counts().considered < most; ++stale) {
    std::stable_sort(members.begin(), members.end(), lower);
    if (members.front().height < best) best = members.front().height, stale = 0;
    std::vector<Member> next(members.begin(), members.begin() + kKept);
    while (next.size() < kPopulation) {
      choice = child_of(problem, parent(members, draws), parent(members, draws), draws);
      if (repair(rules, choice, draws)) next.push_back({choice, height(inquiry.ask(choice))});
    }
    members = std::move(next);
  }
  choice = std::min_element(members.begin(), members.end(), lower)->choice;
  return descend(inquiry, choice);
}

}  // namespace

SearchResult search_evolution(const Problem& problem, const SearchOptions& options) {
  Inquiry inquiry(problem, options, true);
  Rules rules(problem);
  const int64_t most = budget(problem, options);
  double best = kNever;
  uint64_t begun = 0;
  for (int stale = 0; stale < kStaleEras && inquiry.counts().considered < most; ++stale) {
    Draws draws(options.seed, begun++);
    const double reached = era(inquiry, rules, draws, most);
    if (reached < best) best = reached, stale = -1;
  }
  return inquiry.finish("evolution", false);
}

}  // namespace esp::plan
