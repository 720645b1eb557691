// What every file of the binary includes, on top of what the rooms do.
#pragma once

#include "cmake/precompiled/common.h"

#include <nlohmann/json.hpp>
