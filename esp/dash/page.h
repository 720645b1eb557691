// The web page, assembled from the files of web/, which are embedded in the binary. The live page loads its script and
// style from the server. A report is one file with scripts and data; it works from file:// without network access.
#pragma once

#include <string>
#include <vector>

#include "esp/dash/run_folder.h"

namespace esp::dash {

std::string page_script();
std::string page_style();
std::string live_page();

// HTML of a report: shows one run, or compares several.
std::string report_page(const std::vector<RunFolder*>& runs, const DataProviders& providers);

}  // namespace esp::dash
