// Where this user's caches are, and the machine's arithmetic peak in them.
#pragma once

#include <string>

#include "esp/train/machine_peak.h"

namespace esp::app {

// $XDG_CACHE_HOME/espalier, else ~/.cache/espalier; empty where neither variable has an absolute path.
std::string cache_folder();
train::MachinePeak machine_peak();

}  // namespace esp::app
