// A search problem with random costs, to test the search methods. Each value of an axis has a cost, and so has each
// pair of values of neighbouring axes. Some prefixes break a rule, and some choices exceed the memory. The lower bound
// of a prefix is the cost of its axes plus the smallest cost of each other axis.
#pragma once

#include <algorithm>

#include "esp/base/rng.h"
#include "esp/plan/search/problem.h"

namespace esp::plan {

class RandomProblem : public SearchProblem {
 public:
  RandomProblem(uint64_t seed, const std::vector<size_t>& sizes, double forbidden = 0.1, double capacity = 0.8)
      : seed_(seed), forbidden_(forbidden), capacity_(capacity) {
    for (size_t i = 0; i < sizes.size(); ++i)
      axes_.push_back({std::string(1, static_cast<char>('a' + i)), std::vector<std::string>(sizes[i], "")});
  }

  bool allowed(const Choice& choice, size_t num_set) const override {
    const size_t axis = num_set - 1;
    // A random rule for the values of two neighbouring axes. The first value of an axis is always allowed, so every
    // prefix can be completed.
    return axis == 0 || choice[axis] == 0 || unit(3, axis, choice[axis - 1], choice[axis]) >= forbidden_;
  }
  ChoiceValue lower_bound(const Choice& choice, size_t num_set, double) const override {
    double sum = 0;
    for (size_t i = 0; i < num_axes(); ++i) {
      if (i < num_set) {
        sum += cost(choice, i);
        continue;
      }
      double least = kNever;
      for (size_t v = 0; v < axes_[i].values.size(); ++v) least = std::min(least, unit(1, i, v, 0));
      sum += least;
    }
    return {sum, sum};
  }
  ChoiceMemory choice_memory(const Choice& choice) const override {
    double sum = 0;
    for (size_t i = 0; i < num_axes(); ++i) sum += unit(4, i, choice[i], 0);
    const double bytes = sum / static_cast<double>(num_axes());
    return {bytes, bytes <= capacity_, bytes / capacity_ - 1};
  }
  ChoiceValue choice_value(const Choice& choice) const override {
    const double value = lower_bound(choice, num_axes(), 0).value;
    return {value, value};
  }

  // All choices that satisfy the rules and fit.
  std::vector<Choice> all() const {
    std::vector<Choice> found;
    Choice choice{};
    while (true) {
      bool good = true;
      for (size_t n = 1; n <= num_axes() && good; ++n) good = allowed(choice, n);
      if (good && choice_memory(choice).fits) found.push_back(choice);
      size_t i = 0;
      while (i < num_axes() && ++choice[i] == axes_[i].values.size()) choice[i++] = 0;
      if (i == num_axes()) return found;
    }
  }

 private:
  double unit(uint64_t what, size_t axis, size_t x, size_t y) const {
    return random_unit(seed_, what, (axis * 256 + x) * 256 + y);
  }
  double cost(const Choice& choice, size_t i) const {
    return unit(1, i, choice[i], 0) + (i > 0 ? 0.5 * unit(2, i, choice[i - 1], choice[i]) : 0);
  }

  uint64_t seed_;
  double forbidden_, capacity_;
};

}  // namespace esp::plan
