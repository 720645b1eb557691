// Output of a lab. On request: a JSON report (--json), and a folder with text, JSON and picture (--out).
#pragma once

#include <string>

#include "apps/espalier/lab_findings.h"
#include "esp/base/json.h"

namespace esp::app {

struct LabFiles {
  std::string json, out;  // json: path of the report file; out: path of the folder; empty: not written
};

// Prints text and findings, writes the requested files and prints the folder's path. Returns the exit code: 1 if an
// asserted figure is wrong.
int finish_lab(const LabFiles& files, const std::string& name, const std::string& text, const Json& report,
               const std::string& svg, const Findings& findings);

}  // namespace esp::app
