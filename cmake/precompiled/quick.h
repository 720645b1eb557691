// For files compiled several at a time: what one file of most groups includes, on top of what all do.
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
