// Headers that nearly every file of every module includes, precompiled once per build. A file still includes what it
// uses: a build with -DESP_PRECOMPILED=OFF checks that. The JSON header is left out: few files need it, and it makes
// the precompiled header slower to load than the text is to parse.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
