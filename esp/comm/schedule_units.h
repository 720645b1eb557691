// Conversion of schedule-file units to elements. Used by schedule_file.cpp and schedule_export.cpp.
#pragma once

#include <cstddef>
#include <span>

#include "esp/comm/schedule_file.h"

namespace esp::comm {

bool has_schedule_file_format(Op op);
bool is_rooted(Op op);
bool is_chunked(Op op);  // true if rank k owns chunk k of the buffer

int num_units(std::span<const int> split);
// Index of the first element of a unit. For the index after the last unit, returns `count`.
size_t unit_offset(std::span<const int> split, size_t count, int unit);
// The range of units of the input or the output that a rank holds; empty for scratch.
UnitArea area_of(const ScheduleFile& file, int rank, Buffer buffer);

// Validates the file for some counts that are divisible by its units and some that are not. Throws UsageError with the
// first fault found.
void validate_for_sample_counts(const ScheduleFile& file);

}  // namespace esp::comm
