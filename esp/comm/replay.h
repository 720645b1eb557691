// The reference reducer: all ranks' schedules run on real values in one process, one element order, the shortest loops
// (kernel::ref). What a communicator delivers must agree with it to the bit. And the ring's figure, frame by frame.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

using Bytes = std::vector<std::byte>;

// inputs[r] is rank r's input; returns every rank's output, averages divided. An output element that the schedules do
// not write is 0. Schedules are taken to be valid (comm/validate.h).
std::vector<Bytes> replay(std::span<const Problem> problems, std::span<const Schedule> schedules,
                          std::span<const Bytes> inputs, DType dtype, ReduceOp op);

// One picture of an all-reduce: cells[rank][chunk] in letters, rank 0's values being a0 a1 …, and what each rank has on
// its way to the next. An empty cell is left out of the picture.
struct Frame {
  std::string title;
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> moving;  // by rank; empty when nothing moves
};

// The shift-0 ring on one chunk per rank, at most 26: the start, then every step of the reduce-scatter under way and
// done, the finished sums alone, and the end of the all-gather. Nine frames for four ranks.
std::vector<Frame> ring_frames(int size);

}  // namespace esp::comm
