// The layouts that are held to one process.
#pragma once

#include <span>
#include <string>

#include "tests/parity/parallel_runs.h"

namespace esp::parity {

struct LayoutRow {
  const char* name;  // of letters, digits and _
  const char* arch;
  int ranks;
  Overrides layout;      // what one process has not
  Overrides model = {};  // what it has too
};
std::span<const LayoutRow> layout_rows();

// "tp=2 pp=2 sequence=true": the layout as its row in docs/parity.md says it.
std::string layout_text(const LayoutRow& row);

}  // namespace esp::parity
