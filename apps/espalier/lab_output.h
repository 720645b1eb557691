// Output of a lab: its report as JSON on request, and a folder with text, JSON and picture.
#pragma once

#include <string>

#include "apps/espalier/lab_findings.h"
#include "esp/base/json.h"

namespace esp::app {

struct LabFiles {
  std::string json, out;  // a file and a folder; empty: none
};

// Prints text and findings, writes the requested files and prints the folder's path. Returns the exit code: 1 if an
// asserted figure is wrong.
int finish_lab(const LabFiles& files, const std::string& name, const std::string& text, const Json& report,
               const std::string& svg, const Findings& findings);

}  // namespace esp::app
