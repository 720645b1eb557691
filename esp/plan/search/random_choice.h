// Common parts of the randomised methods: seeded numbers, random choices that satisfy the rules, and descent that
// changes up to two axes at a time.
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

// Caches the problem's rules: each partial choice is evaluated once, because random draws repeat.
class Rules {
 public:
  explicit Rules(const SearchProblem& problem) : problem_(problem) {}
  const SearchProblem& problem() const { return problem_; }
  bool allowed(const Choice& choice, size_t num_set);

 private:
  const SearchProblem& problem_;
  std::unordered_map<Choice, bool, ChoiceHash> known_;  // by partial choice; the last element is its length
};

// Repairs the choice: replaces axes at random where they break a rule. False: an axis has no allowed value.
bool repair(Rules& rules, Choice& choice, RandomStream& random);
bool random_choice(Rules& rules, Choice& choice, RandomStream& random);

// The height that local search minimises: the logarithm of the value, or, above all of those, the excess of memory.
double height(const Evaluation& answer);

// Moves to the best neighbour (one or two axes) until none is better. Returns the final height.
double descend(Evaluator& evaluator, Choice& choice);

// Default number of evaluations: a fraction of the space, within limits.
int64_t budget(const SearchProblem& problem, const SearchOptions& options);

}  // namespace esp::plan
