// Units of schedule files, converted to elements. For schedule_file.cpp and schedule_export.cpp.
#pragma once

#include <cstddef>
#include <span>

#include "esp/comm/schedule_file.h"

namespace esp::comm {

bool can_be_filed(Op op);
bool is_rooted(Op op);
bool is_chunked(Op op);  // rank k owns chunk k

int num_units(std::span<const int> split);
// First element of a unit; `count` for the one past the last.
size_t unit_offset(std::span<const int> split, size_t count, int unit);
// The units of the input or the output that a rank has; none of scratch.
UnitArea area_of(const ScheduleFile& file, int rank, Buffer buffer);

// Proves the file for counts that divide evenly and counts that do not. UsageError with the fault.
void prove_for_some_counts(const ScheduleFile& file);

}  // namespace esp::comm
