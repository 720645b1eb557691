// The parallel layouts that tests compare with training on one process.
#pragma once

#include <span>
#include <string>

#include "tests/parity/parallel_runs.h"

namespace esp::parity {

struct LayoutRow {
  const char* name;  // name of the row; only letters, digits and _
  const char* arch;
  int ranks;
  Overrides layout;      // overrides for the parallel run, but not for the run of one process
  Overrides model = {};  // overrides for both runs
};
std::span<const LayoutRow> layout_rows();

// The layout as text, as in its row of docs/parity.md: "tp=2 pp=2 sequence=true".
std::string layout_text(const LayoutRow& row);

}  // namespace esp::parity
