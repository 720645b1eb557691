// Search problem, the interface of the search methods: axes with a number of values each, rules over partial choices, a
// weight (memory, cheap), a floor (a lower bound of the time, cheap) and a worth (expensive). The planner's problem is
// plan_problem.h; tests use others, with costs that no model has.
//
// All functions are const and may be called from several threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace esp::plan {

inline constexpr size_t kMaxAxes = 16;  // a problem may have one less: Rules stores a length in the last
inline constexpr double kNever = std::numeric_limits<double>::infinity();

// By axis, the index of its value; unused axes are 0.
using Choice = std::array<uint8_t, kMaxAxes>;

struct SearchAxis {
  std::string name;
  std::vector<std::string> values;  // as text, in search order
};

struct ChoiceMemory {
  double memory_bytes = 0;
  bool fits = true;
  double excess = 0;  // memory over the capacity, minus one; guides local search where nothing fits
};

// `value` is that of the objective; lower is better.
struct ChoiceValue {
  double value = kNever, time_s = kNever;
};

class SearchProblem {
 public:
  virtual ~SearchProblem() = default;
  const std::vector<SearchAxis>& axes() const { return axes_; }
  size_t num_axes() const { return axes_.size(); }

  // Whether the first `num_set` axes of the choice satisfy the rules, for any values of the others.
  virtual bool allowed(const Choice& choice, size_t num_set) const = 0;
  // A lower bound of the value of all choices with this beginning. `memory_bytes` is that of the choice, where all axes
  // are set and it is known.
  virtual ChoiceValue floor(const Choice& choice, size_t num_set, double memory_bytes) const = 0;
  virtual ChoiceMemory weigh(const Choice& choice) const = 0;
  // Of a choice that is allowed and fits.
  virtual ChoiceValue worth(const Choice& choice) const = 0;
  // A lower bound of the memory of all choices with this beginning; 0 where unknown.
  virtual ChoiceMemory lightest(const Choice& choice, size_t num_set) const {
    (void)choice, (void)num_set;
    return {};
  }
  // A lower bound over all divisions of the layers over the stages of this choice, by dynamic programming; of a problem
  // without layers, the floor.
  virtual double divided_floor(const Choice& choice, double memory_bytes) const {
    return floor(choice, num_axes(), memory_bytes).value;
  }

 protected:
  std::vector<SearchAxis> axes_;
};

}  // namespace esp::plan
