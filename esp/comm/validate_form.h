// The checks on one rank's schedule alone; validate.cpp has the rest.
#pragma once

#include <string>

#include "esp/comm/schedule.h"

namespace esp::comm {

// Thrown by the checks and caught in find_fault; the text names rank and action.
struct Fault {
  std::string text;
};

std::string in_words(const BufferRegion& region);
std::string in_words(int rank, size_t index, const Action& action);
bool is_message(Act act);

// Checks regions, rounds and sources, and that messages of one round do not wait for each other. Throws Fault.
void check_form(const CollectiveSpec& spec, const Schedule& schedule, int num_rounds);

}  // namespace esp::comm
