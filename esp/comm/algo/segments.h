// Number of segments of a pipelined chain of ranks.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm {

// spec.segments if set. Otherwise about 16 K elements per segment, at most 256 segments.
int pipeline_segments(const CollectiveSpec& spec);

}  // namespace esp::comm
