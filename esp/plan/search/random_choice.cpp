#include "esp/plan/search/random_choice.h"

#include <algorithm>
#include <cmath>

namespace esp::plan {
namespace {

constexpr double kTooLarge = 1e3, kBroken = 1e6;
constexpr double kMinBudget = 20000, kMaxBudget = 60000;

// Sets the axis to a random allowed value. Returns false if no value is allowed.
bool set_any(RuleCache& rules, Choice& choice, size_t axis, RandomStream& random) {
  const size_t n = rules.problem().axes()[axis].values.size(), first = random.below(n);
  for (size_t i = 0; i < n; ++i) {
    choice[axis] = static_cast<uint8_t>((first + i) % n);
    if (rules.allowed(choice, axis + 1)) return true;
  }
  return false;
}

}  // namespace

bool RuleCache::allowed(const Choice& choice, size_t num_set) {
  Choice key{};
  std::copy_n(choice.begin(), num_set, key.begin());
  key[kMaxAxes - 1] = static_cast<uint8_t>(num_set);
  const auto at = cache_.find(key);
  if (at != cache_.end()) return at->second;
  const bool answer = problem_.allowed(choice, num_set);
  cache_.emplace(key, answer);
  return answer;
}

bool repair(RuleCache& rules, Choice& choice, RandomStream& random) {
  for (size_t axis = 0; axis < rules.problem().num_axes(); ++axis)
    if (!rules.allowed(choice, axis + 1) && !set_any(rules, choice, axis, random)) return false;
  return true;
}

bool random_choice(RuleCache& rules, Choice& choice, RandomStream& random) {
  // number of attempts: a random partial choice may leave a later axis without an allowed value
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    choice = {};
    bool whole = true;
    for (size_t axis = 0; axis < rules.problem().num_axes() && whole; ++axis)
      whole = set_any(rules, choice, axis, random);
    if (whole) return true;
  }
  return false;
}

double search_cost(const Evaluation& answer) {
  if (answer.feasible()) return std::log(std::max(answer.value, 1e-300));
  return answer.outcome == Evaluation::Outcome::too_large ? kTooLarge + answer.excess : kBroken;
}

double descend(Evaluator& evaluator, Choice& choice) {
  const SearchProblem& problem = evaluator.problem();
  double best = search_cost(evaluator.evaluate(choice));
  for (bool moved = true; moved;) {
    moved = false;
    const Choice from = choice;
    for (size_t a = 0; a < problem.num_axes(); ++a)
      for (size_t b = a; b < problem.num_axes(); ++b)
        for (size_t i = 0; i < problem.axes()[a].values.size(); ++i)
          for (size_t j = 0; j < problem.axes()[b].values.size(); ++j) {
            Choice near = from;
            near[a] = static_cast<uint8_t>(i);
            if (a != b) near[b] = static_cast<uint8_t>(j);
            if (near == from || (a == b && j > 0)) continue;
            const double there = search_cost(evaluator.evaluate(near));
            if (there < best) best = there, choice = near, moved = true;
          }
  }
  return best;
}

int64_t budget(const SearchProblem& problem, const SearchOptions& options) {
  if (options.evaluations > 0) return options.evaluations;
  double size = 1;
  for (const SearchAxis& axis : problem.axes()) size *= static_cast<double>(axis.values.size());
  return static_cast<int64_t>(std::clamp(size / 20, kMinBudget, kMaxBudget));
}

}  // namespace esp::plan
