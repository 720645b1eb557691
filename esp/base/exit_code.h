// Exit code of a run whose training failed: the loss or weights are not finite, or most steps were skipped. A restart
// would fail in the same way.
#pragma once

#include "esp/base/error.h"

namespace esp {

inline constexpr ExitCode kExitTraining = static_cast<ExitCode>(5);

}  // namespace esp
