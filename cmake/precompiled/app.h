// Headers that every file of the binary includes, in addition to those of the modules.
#pragma once

#include "cmake/precompiled/common.h"

#include <nlohmann/json.hpp>
