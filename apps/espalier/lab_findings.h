// Findings of a lab, one per row: the lecture's figure, the result of a formula or a simulation, and the measurement.
//
// A figure with one correct value (counts, bytes, frames, losses that must be equal) is asserted. If an asserted figure
// is wrong, the lab ends with exit code 1. Times are shown without an assertion.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"

namespace esp::app {

enum class Mark : uint8_t {
  none,        // there is nothing to compare
  agrees,      // no assertion failed, and the figures are equal to the lecture's
  convention,  // equal only if counted in the lecture's way, which the note describes
  differs,     // the figure differs from the lecture's; the note gives the reason
  wrong,       // the assertion of this row failed
};
std::string_view name_of(Mark mark);

struct Finding {
  enum class Check : uint8_t { none, holds, fails };
  std::string what, lecture, modelled, measured;
  Check check = Check::none;  // compares modelled with measured
  double tolerance = 0;       // relative tolerance of `check` and of the comparison with the lecture
  std::string note;           // the reason for a difference from the lecture
  std::string convention;     // the figure as the lecture would count it: "3.5 GB"

  // The mark of this row. A figure is compared with the lecture's within the digits that the lecture prints.
  Mark mark() const;
};

class Findings {
 public:
  // Adds a row without an assertion; a cell may be empty.
  Finding& show(std::string what, std::string lecture, std::string modelled, std::string measured);
  // Asserts that two numbers are equal. `unit` is printed after them.
  Finding& exact(std::string what, std::string lecture, double modelled, double measured, std::string_view unit = "");
  // Asserts that two texts are equal.
  Finding& same(std::string what, std::string lecture, std::string modelled, std::string measured);
  // Asserts that two numbers are equal within a relative tolerance (`part`), for figures that are rounded or noisy.
  Finding& within(std::string what, std::string lecture, double modelled, double measured, double part,
                  std::string_view unit = "");
  // Asserts a condition (`true_here`); `measured` describes it.
  Finding& holds(std::string what, std::string lecture, std::string modelled, std::string measured, bool true_here);

  bool empty() const { return all_.empty(); }
  bool all_hold() const;
  const std::vector<Finding>& all() const { return all_; }
  std::string text() const;  // table for a terminal
  Json json() const;

 private:
  std::vector<Finding> all_;
};

// Text of the result column: "✓", "✓ ± 1 %", "✓ convention", "≠", "WRONG".
std::string result_text(Mark mark, double tolerance);
// One sentence that explains the texts of the result column.
extern const char* const kMarkLegend;

}  // namespace esp::app
