// What every file of the binary includes, on top of what the rooms do.
#pragma once

#include "cmake/precompiled/common.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
