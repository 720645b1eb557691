// Reference implementation: runs all ranks' schedules on real values in one process, element by element (kernel::ref).
// A communicator must match it bit for bit. Also draws the frames of the ring figure.
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
std::vector<Bytes> replay(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules,
                          std::span<const Bytes> inputs, DType dtype, ReduceOp op);

// One frame of the figure: cells[rank][chunk] as letters (rank 0 holds a0 a1 …), and the values each rank is sending.
// An empty cell is not drawn.
struct RingFrame {
  std::string title;
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> moving;  // by rank; empty when nothing moves
};

// Frames of the shift-0 ring with one chunk per rank, at most 26 ranks: the start, each reduce-scatter step in flight
// and done, the finished sums, and the end of the all-gather. Nine frames for four ranks.
std::vector<RingFrame> ring_frames(int size);

}  // namespace esp::comm
