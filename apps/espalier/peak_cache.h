// The user's cache folder, and the peak arithmetic rate of this machine, which is stored in it.
#pragma once

#include <string>

#include "esp/train/machine_peak.h"

namespace esp::app {

// $XDG_CACHE_HOME/espalier, or else ~/.cache/espalier. Empty if neither variable holds an absolute path.
std::string cache_folder();
train::MachinePeak machine_peak();

}  // namespace esp::app
