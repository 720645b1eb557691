// Number of segments of a pipelined chain of ranks.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm {

// spec.segments when given. Otherwise about 16 K elements per segment, at most 256 segments.
int line_segments(const CollectiveSpec& spec);

}  // namespace esp::comm
