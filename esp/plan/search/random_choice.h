// Code shared by the randomised search methods: seeded random numbers, random choices that satisfy the rules of the
// search problem, and a local search (descent) that changes one or two axes of the search space per move.
#pragma once

#include <cstdint>

#include "esp/base/rng.h"
#include "esp/plan/search/evaluator.h"

namespace esp::plan {

class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t purpose) : seed_(seed), purpose_(purpose) {}
  double unit() { return random_unit(seed_, purpose_, next_++); }
  size_t below(size_t n) { return static_cast<size_t>(unit() * static_cast<double>(n)); }

 private:
  uint64_t seed_, purpose_, next_ = 0;
};

// Caches the result of the rules for each partial choice, because random sampling repeats partial choices.
class RuleCache {
 public:
  explicit RuleCache(const SearchProblem& problem) : problem_(problem) {}
  const SearchProblem& problem() const { return problem_; }
  bool allowed(const Choice& choice, size_t num_set);

 private:
  const SearchProblem& problem_;
  // key: a partial choice, with the number of set axes in the last element
  std::unordered_map<Choice, bool, ChoiceHash> cache_;
};

// Replaces values that break a rule by random allowed values. Returns false if an axis has no allowed value.
bool repair(RuleCache& rules, Choice& choice, RandomStream& random);
bool random_choice(RuleCache& rules, Choice& choice, RandomStream& random);

// The cost that local search minimises. For a choice that fits: the logarithm of its value. Otherwise: a larger number
// that grows with the excess of memory.
double search_cost(const Evaluation& answer);

// Moves to the neighbour with the lowest cost (one or two axes changed) until no neighbour is better. Returns the final
// cost.
double descend(Evaluator& evaluator, Choice& choice);

// Number of evaluations: options.evaluations, or if that is 0 a fraction of the number of choices, within limits.
int64_t budget(const SearchProblem& problem, const SearchOptions& options);

}  // namespace esp::plan
