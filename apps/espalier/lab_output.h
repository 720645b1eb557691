// What a lab leaves behind: its report as JSON where asked, and a folder with text, JSON and picture.
#pragma once

#include <string>

#include "apps/espalier/lab_findings.h"
#include "esp/base/json.h"

namespace esp::app {

struct LabFiles {
  std::string json, out;  // a file and a folder; empty: not wanted
};

// Prints text and findings, writes what is wanted and says on stdout where the folder's files are. The exit code: 1
// when a figure that has one right value does not have it.
int finish_lab(const LabFiles& files, const std::string& name, const std::string& text, const Json& report,
               const std::string& svg, const Findings& findings);

}  // namespace esp::app
