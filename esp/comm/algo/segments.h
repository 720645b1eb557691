// How many segments a pipelined line of ranks cuts its message in.
#pragma once

#include "esp/comm/schedule.h"

namespace esp::comm {

// problem.segments when given. Otherwise about 16 K elements a segment, at most 256.
int line_segments(const Problem& problem);

}  // namespace esp::comm
