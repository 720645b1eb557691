// The ring all-reduce of four ranks, frame by frame, recorded from a real run.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/replay.h"

namespace esp::app {

// Runs the shift-0 ring round by round over a transport between `size` threads, reads every rank's memory after each
// round, and names its content in letters (rank 0 starts with a0 a1 …).
std::vector<comm::RingFrame> run_ring_frames(int size);

// Empty when both are equal; otherwise describes the first difference.
std::string difference(const std::vector<comm::RingFrame>& real, const std::vector<comm::RingFrame>& expected);

std::string to_text(const comm::RingFrame& frame, int number);

}  // namespace esp::app
