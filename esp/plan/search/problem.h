// Search problem: the interface between the search methods and the problem that they search. A problem has axes with
// several values each, rules for partial choices, the memory of a choice (cheap), lower bounds (cheap), and the value
// of a choice (expensive). The planner's problem is plan_problem.h; tests use problems with artificial costs.
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

// A problem may have at most kMaxAxes − 1 axes, because RuleCache stores a length in the last element of a choice.
inline constexpr size_t kMaxAxes = 16;
inline constexpr double kNever = std::numeric_limits<double>::infinity();

// The index of the chosen value, by axis. Unused elements are 0.
using Choice = std::array<uint8_t, kMaxAxes>;

struct SearchAxis {
  std::string name;
  std::vector<std::string> values;  // names of the values, in search order
};

struct ChoiceMemory {
  double memory_bytes = 0;
  bool fits = true;
  double excess = 0;  // memory / capacity − 1; guides local search as long as no choice fits
};

// `value`: the value of the objective; lower is better.
struct ChoiceValue {
  double value = kNever, time_s = kNever;
};

class SearchProblem {
 public:
  virtual ~SearchProblem() = default;
  const std::vector<SearchAxis>& axes() const { return axes_; }
  size_t num_axes() const { return axes_.size(); }

  // Whether the first `num_set` axes of the choice satisfy the rules for all values of the later axes.
  virtual bool allowed(const Choice& choice, size_t num_set) const = 0;
  // A lower bound of the value over all choices that share the first `num_set` axes. `memory_bytes`: the memory of the
  // choice if all axes are set, otherwise a lower bound of the memory.
  virtual ChoiceValue lower_bound(const Choice& choice, size_t num_set, double memory_bytes) const = 0;
  virtual ChoiceMemory choice_memory(const Choice& choice) const = 0;
  // The value of a choice that satisfies the rules and fits.
  virtual ChoiceValue choice_value(const Choice& choice) const = 0;
  // A lower bound of the memory over all choices that share the first `num_set` axes; 0: unknown.
  virtual ChoiceMemory least_memory(const Choice& choice, size_t num_set) const {
    (void)choice, (void)num_set;
    return {};
  }
  // A lower bound of the value over all divisions of the layers over the stages of this choice, computed by dynamic
  // programming. A problem without layers returns its normal lower bound.
  virtual double division_lower_bound(const Choice& choice, double memory_bytes) const {
    return lower_bound(choice, num_axes(), memory_bytes).value;
  }

 protected:
  std::vector<SearchAxis> axes_;
};

}  // namespace esp::plan
