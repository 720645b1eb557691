// Reference implementation: runs the schedules of all ranks on real values in one process, element by element
// (kernel::ref). A communicator's result must equal the replay's bit for bit. Also makes the frames of the ring figure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

using Bytes = std::vector<std::byte>;

// inputs[r] is the input of rank r. Returns the output of every rank, with averages divided. Output elements that no
// schedule writes are 0. The schedules must be valid (comm/validate.h).
std::vector<Bytes> replay(std::span<const CollectiveSpec> specs, std::span<const Schedule> schedules,
                          std::span<const Bytes> inputs, DType dtype, ReduceOp op);

// One frame of the figure. cells[rank][chunk]: the values in a cell as letters (rank 0 starts with a0 a1 …); an empty
// cell is not drawn.
struct RingFrame {
  std::string title;
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> moving;  // indexed by rank: the values that this rank is sending; empty if none
};

// Frames of the shift-0 ring with one chunk per rank, at most 26 ranks: the start, each reduce-scatter step in flight
// and done, the final sums, and the end of the all-gather. Four ranks give nine frames.
std::vector<RingFrame> ring_frames(int size);

}  // namespace esp::comm
