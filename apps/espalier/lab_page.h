// The report of all labs as one HTML page: pictures, tables of figures, texts. The page needs no other files. It
// supports light and dark mode and narrow screens.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/lab_table.h"

namespace esp::app {

// The files that one lab wrote into the folder; empty if it failed before that.
struct LabResult {
  const Experiment* lab = nullptr;
  std::string chapter;
  int exit_code = 0;
  double seconds = 0;
  std::string text, svg, findings_json, error_text;
};

std::string labs_page(const std::vector<LabResult>& results, const std::string& machine);

}  // namespace esp::app
