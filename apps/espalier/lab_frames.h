// The ring all-reduce of four ranks, frame by frame, recorded from a real run.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/replay.h"

namespace esp::app {

// Runs a ring all-reduce (shift 0) round by round over a transport between `size` threads. Reads every rank's memory
// after each round and names its content in letters (rank 0 starts with a0 a1 …).
std::vector<comm::RingFrame> run_ring_frames(int size);

// Describes the first difference; empty if both are equal.
std::string difference(const std::vector<comm::RingFrame>& real, const std::vector<comm::RingFrame>& expected);

std::string to_text(const comm::RingFrame& frame, int number);

}  // namespace esp::app
