// For unity builds: headers that at least one file of most groups includes, in addition to common.h.
#pragma once

#include "cmake/precompiled/common.h"

#include <charconv>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <unordered_map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
