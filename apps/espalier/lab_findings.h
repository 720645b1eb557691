// Findings of a lab, row by row: the lecture's figure, the result of a formula or a simulation, and the measurement.
//
// Figures with one correct value (counts, bytes, frames, losses that must be equal) are asserted: a lab with a wrong
// one ends with exit code 1. Times are shown without assertion.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"

namespace esp::app {

enum class Mark : uint8_t {
  none,        // nothing to compare
  agrees,      // the asserted figures are equal, and equal to the lecture's
  convention,  // the lecture counts in another way, named in the note; computed in that way the figure is equal
  differs,     // different from the lecture's figure; the note gives the reason
  wrong,       // an asserted figure is wrong
};
std::string_view name_of(Mark mark);

struct Finding {
  enum class Check : uint8_t { none, holds, fails };
  std::string what, lecture, modelled, measured;
  Check check = Check::none;  // modelled against measured
  double tolerance = 0;       // relative; of the check, and of the comparison with the lecture
  std::string note;           // the reason for a difference from the lecture
  std::string convention;     // the figure computed with the lecture's convention: "3.5 GB"

  // Computes every mark. A lecture's figure is compared within its printed digits.
  Mark mark() const;
};

class Findings {
 public:
  // Shown side by side; a cell may be empty.
  Finding& show(std::string what, std::string lecture, std::string modelled, std::string measured);
  // Asserts equal numbers. `unit` follows them.
  Finding& exact(std::string what, std::string lecture, double modelled, double measured, std::string_view unit = "");
  // Asserts equal texts.
  Finding& same(std::string what, std::string lecture, std::string modelled, std::string measured);
  // Asserts a relative tolerance, for figures with a stated rounding.
  Finding& within(std::string what, std::string lecture, double modelled, double measured, double part,
                  std::string_view unit = "");
  // Asserts a condition; `measured` describes it.
  Finding& holds(std::string what, std::string lecture, std::string modelled, std::string measured, bool true_here);

  bool empty() const { return all_.empty(); }
  bool all_hold() const;
  const std::vector<Finding>& all() const { return all_; }
  std::string text() const;  // a table for a terminal
  Json json() const;

 private:
  std::vector<Finding> all_;
};

// Content of the result column: "✓", "✓ ± 1 %", "✓ convention", "≠", "WRONG".
std::string result_text(Mark mark, double tolerance);
// The legend of those marks, one sentence.
extern const char* const kMarkLegend;

}  // namespace esp::app
