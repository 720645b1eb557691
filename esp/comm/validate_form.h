// The checks that need the schedule of one rank only; validate.cpp has the others.
#pragma once

#include <string>

#include "esp/comm/schedule.h"

namespace esp::comm {

// A fault in a schedule. Thrown by the checks and caught in find_fault; the text names rank and action.
struct ScheduleFault {
  std::string text;
};

std::string describe(const BufferRegion& region);
std::string describe(int rank, size_t index, const Action& action);
bool is_message(ActionType type);

// Checks regions, rounds and sources, and that messages of one round do not wait for each other. Throws ScheduleFault.
void check_form(const CollectiveSpec& spec, const Schedule& schedule, int num_rounds);

}  // namespace esp::comm
