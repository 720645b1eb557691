// What a lab found, item by item: the lecture's figure, what a formula or a simulation says, and what ran here.
//
// Some figures have one right value: counts, bytes, frames, losses that must be equal. Those are asserted, and a lab
// with one that does not hold ends with exit code 1. Times are shown and decide nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"

namespace esp::app {

struct Finding {
  enum class Held : uint8_t { shown, exact, wrong };
  std::string what, lecture, modelled, measured;
  Held held = Held::shown;
};

class Findings {
 public:
  // Shown side by side; an empty cell has nothing to say.
  void show(std::string what, std::string lecture, std::string modelled, std::string measured);
  // Must be the same number. `unit` follows it.
  void exact(std::string what, std::string lecture, double modelled, double measured, std::string_view unit = "");
  // Must be the same words.
  void same(std::string what, std::string lecture, std::string modelled, std::string measured);
  // Must lie within a part of the modelled, for figures whose rounding is stated.
  void within(std::string what, std::string lecture, double modelled, double measured, double part,
              std::string_view unit = "");
  // Must be true; `measured` says how.
  void holds(std::string what, std::string lecture, std::string modelled, std::string measured, bool true_here);

  bool empty() const { return all_.empty(); }
  bool all_hold() const;
  const std::vector<Finding>& all() const { return all_; }
  std::string text() const;  // a table for a terminal
  Json json() const;

 private:
  std::vector<Finding> all_;
};

std::string_view name_of(Finding::Held held);

}  // namespace esp::app
