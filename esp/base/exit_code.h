// The exit code of a run whose training failed: loss or values are not finite, or most steps were skipped. Starting it
// again would fail the same way.
#pragma once

#include "esp/base/error.h"

namespace esp {

inline constexpr ExitCode kExitTraining = static_cast<ExitCode>(5);

}  // namespace esp
