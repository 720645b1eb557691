// What a search method sees: axes with a number of values each, rules over the first axes of a choice, a weight
// (memory, cheap), a floor (a time that nothing beats, cheap) and a worth (dear). The planner's own is plan_problem.h;
// tests have others, so that a method is shown right on costs that no model has.
//
// All of it is const and may be asked from several threads at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace esp::plan {

inline constexpr size_t kMostAxes = 16;  // one less than that for a problem: Rules keeps a length in the last
inline constexpr double kNever = std::numeric_limits<double>::infinity();

// By axis, the index of its value; axes there are not are 0.
using Choice = std::array<uint8_t, kMostAxes>;

struct Axis {
  std::string name;
  std::vector<std::string> values;  // as words, in the order that is tried
};

struct Weight {
  double memory_bytes = 0;
  bool fits = true;
  double excess = 0;  // memory over the capacity, less one; what a method that climbs follows where nothing fits
};

// `value` is the objective's and least is best.
struct Worth {
  double value = kNever, time_s = kNever;
};

class Problem {
 public:
  virtual ~Problem() = default;
  const std::vector<Axis>& axes() const { return axes_; }
  size_t num_axes() const { return axes_.size(); }

  // Whether the first `num_set` axes of the choice break no rule, whatever the others are.
  virtual bool allowed(const Choice& choice, size_t num_set) const = 0;
  // No choice that begins so is worth less. `memory_bytes` is the choice's where all axes are set and it is known.
  virtual Worth floor(const Choice& choice, size_t num_set, double memory_bytes) const = 0;
  virtual Weight weigh(const Choice& choice) const = 0;
  // Of a choice that is allowed and fits.
  virtual Worth worth(const Choice& choice) const = 0;
  // Nothing that begins so is lighter: a relaxation, of 0 bytes where none is known.
  virtual Weight lightest(const Choice& choice, size_t num_set) const {
    (void)choice, (void)num_set;
    return {};
  }
  // No division of the layers over the stages of this choice is worth less, by dynamic programming; of a problem
  // without layers, the floor.
  virtual double divided_floor(const Choice& choice, double memory_bytes) const {
    return floor(choice, num_axes(), memory_bytes).value;
  }

 protected:
  std::vector<Axis> axes_;
};

}  // namespace esp::plan
