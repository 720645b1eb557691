// The ring all-reduce of four ranks, frame by frame, taken from a real run.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/replay.h"

namespace esp::app {

// Runs the shift-0 ring round by round over a transport between `size` threads, looking at every rank's memory after
// each round, and names what lies there in letters (rank 0 starts with a0 a1 …).
std::vector<comm::Frame> run_ring_frames(int size);

// Empty when both show the same; otherwise the first difference in words.
std::string difference(const std::vector<comm::Frame>& real, const std::vector<comm::Frame>& expected);

std::string to_text(const comm::Frame& frame, int number);

}  // namespace esp::app
