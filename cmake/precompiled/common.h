// What nearly every file of every room includes. Precompiled once per build; a file still includes what it uses, which
// -DESP_PRECOMPILED=OFF shows. The json header is left out: few files need it, and it
// makes the rest slower to load than it was to read.
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
