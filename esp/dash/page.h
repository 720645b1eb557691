// The page: the files of web/, in the binary since it was built, joined. Live it loads its script and style from the
// server; as a report it is one file that holds them and the data, and runs from file:// without asking anybody.
#pragma once

#include <string>
#include <vector>

#include "esp/dash/run_folder.h"

namespace esp::dash {

std::string page_script();
std::string page_style();
std::string live_page();

// One run, or several side by side.
std::string report_page(const std::vector<RunFolder*>& runs, const Knowledge& knowledge);

}  // namespace esp::dash
