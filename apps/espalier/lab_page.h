// The report of all labs as one page: pictures, figures side by side, texts. Self-contained, for light and dark
// screens, down to the width of a phone.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/lab_table.h"

namespace esp::app {

// The files of one lab in the folder; empty where it failed before writing.
struct LabResult {
  const Experiment* lab = nullptr;
  std::string chapter;
  int exit_code = 0;
  double seconds = 0;
  std::string text, svg, findings_json, complaint;
};

std::string labs_page(const std::vector<LabResult>& results, const std::string& machine);

}  // namespace esp::app
