// What the methods that draw share: numbers from a seed, choices that keep the rules, and descent from one by changing
// two axes at a time.
#pragma once

#include <cstdint>

#include "esp/base/rng.h"
#include "esp/plan/search/inquiry.h"

namespace esp::plan {

class Draws {
 public:
  Draws(uint64_t seed, uint64_t purpose) : seed_(seed), purpose_(purpose) {}
  double unit() { return random_unit(seed_, purpose_, next_++); }
  size_t below(size_t n) { return static_cast<size_t>(unit() * static_cast<double>(n)); }

 private:
  uint64_t seed_, purpose_, next_ = 0;
};

// The problem's rules, each beginning asked about once: drawing comes back to the same ones.
class Rules {
 public:
  explicit Rules(const Problem& problem) : problem_(problem) {}
  const Problem& problem() const { return problem_; }
  bool allowed(const Choice& choice, size_t num_set);

 private:
  const Problem& problem_;
  std::unordered_map<Choice, bool, ChoiceHash> known_;  // by the beginning and, in the last place, its length
};

// The choice, its axes replaced at random where they break a rule. False: no value was found for one.
bool repair(Rules& rules, Choice& choice, Draws& draws);
bool random_choice(Rules& rules, Choice& choice, Draws& draws);

// What a climber minimises: the value's logarithm, and beyond all of those how much too large a choice is.
double height(const Answer& answer);

// Steps of one or two axes at a time to the best neighbour until none is better. Returns the height reached.
double descend(Inquiry& inquiry, Choice& choice);

// How many choices to ask about where no number is given: a part of the space, within bounds.
int64_t budget(const Problem& problem, const SearchOptions& options);

}  // namespace esp::plan
