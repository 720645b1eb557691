// Evolutionary search. A generation: tournament selection of parents, uniform crossover, mutation, repair of broken
// rules, survival of the best. Generations without improvement end an era; the best choice of the era is improved by
// descent. New eras start until several in a row bring no improvement.
#include <algorithm>

#include "esp/plan/search/methods.h"
#include "esp/plan/search/random_choice.h"

namespace esp::plan {
namespace {

constexpr size_t kPopulation = 128, kTournament = 3, kKept = 4;
constexpr int kStaleEras = 8, kStaleGenerations = 20;

struct Member {
  Choice choice{};
  double search_cost = kNever;
};

const Member& parent(const std::vector<Member>& members, RandomStream& random) {
  const Member* best = &members[random.below(members.size())];
  for (size_t i = 1; i < kTournament; ++i) {
    const Member& other = members[random.below(members.size())];
    if (other.search_cost < best->search_cost) best = &other;
  }
  return *best;
}

Choice child_of(const SearchProblem& problem, const Member& a, const Member& b, RandomStream& random) {
  Choice child = a.choice;
  const double mutation = 1.5 / static_cast<double>(problem.num_axes());
  for (size_t axis = 0; axis < problem.num_axes(); ++axis) {
    if (random.unit() < 0.5) child[axis] = b.choice[axis];
    if (random.unit() < mutation) child[axis] = static_cast<uint8_t>(random.below(problem.axes()[axis].values.size()));
  }
  return child;
}

double era(Evaluator& evaluator, RuleCache& rules, RandomStream& random, int64_t most) {
  const SearchProblem& problem = evaluator.problem();
  std::vector<Member> members;
  Choice choice;
  while (members.size() < kPopulation && random_choice(rules, choice, random))
    members.push_back({choice, search_cost(evaluator.evaluate(choice))});
  if (members.size() < kPopulation) return kNever;  // too few choices satisfy the rules
  const auto lower = [](const Member& a, const Member& b) { return a.search_cost < b.search_cost; };
  double best = kNever;
  for (int stale = 0; stale < kStaleGenerations && evaluator.counts().considered < most; ++stale) {
    std::stable_sort(members.begin(), members.end(), lower);
    if (members.front().search_cost < best) best = members.front().search_cost, stale = 0;
    std::vector<Member> next(members.begin(), members.begin() + kKept);
    while (next.size() < kPopulation) {
      choice = child_of(problem, parent(members, random), parent(members, random), random);
      if (repair(rules, choice, random)) next.push_back({choice, search_cost(evaluator.evaluate(choice))});
    }
    members = std::move(next);
  }
  choice = std::min_element(members.begin(), members.end(), lower)->choice;
  return descend(evaluator, choice);
}

}  // namespace

SearchResult search_evolution(const SearchProblem& problem, const SearchOptions& options) {
  Evaluator evaluator(problem, options, true);
  RuleCache rules(problem);
  const int64_t most = budget(problem, options);
  double best = kNever;
  uint64_t begun = 0;
  for (int stale = 0; stale < kStaleEras && evaluator.counts().considered < most; ++stale) {
    RandomStream random(options.seed, begun++);
    const double reached = era(evaluator, rules, random, most);
    if (reached < best) best = reached, stale = -1;
  }
  return evaluator.finish("evolution", false);
}

}  // namespace esp::plan
