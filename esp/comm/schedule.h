// A collective algorithm as data: the actions of one rank. The executor runs it on any transport, the simulator
// computes its time, the validator proves it correct, and the replay repeats its summation order in one process.
//
// Actions are in order; `round` counts as in the literature (one full-duplex exchange by all ranks). Running strictly
// in order with buffered sends is always correct. The executor may run an action as soon as the earlier actions on
// overlapping regions are done. Messages between two ranks match in list order. Offsets and counts are in elements, so
// one schedule serves every element type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "esp/comm/call.h"

namespace esp::comm {

// The three buffers of a schedule. `input` is read only. A schedule that needs the input's values in `output` contains
// a copy action. In an in-place call both pointers are equal, so this copy costs nothing.
enum class Buffer : uint8_t { input, output, scratch };

struct BufferRegion {
  Buffer buffer = Buffer::output;
  size_t offset = 0, count = 0;
  bool overlaps(const BufferRegion& other) const {
    return buffer == other.buffer && offset < other.offset + other.count && other.offset < offset + count;
  }
};

enum class ActionType : uint8_t {
  send,            // sends the region to the peer
  receive,         // receives the peer's message into the region
  receive_reduce,  // region = region op message
  copy,            // region = sources[0]
  reduce,          // region = sources[0] op sources[1] op …, in this order, rounded once
};

struct Action {
  ActionType type = ActionType::send;
  int round = 0;
  int peer = -1;
  BufferRegion region;
  std::vector<BufferRegion> sources;  // used only by copy and reduce
};

struct Schedule {
  std::vector<Action> actions;
  size_t scratch_count = 0;  // size of the scratch memory in elements
  int num_rounds = 0;        // number of rounds of the whole algorithm, equal on every rank
};

// Splits messages longer than max_elements into slices, at the same places on both ends, and splits local actions to
// match. A slice can then be forwarded while the rest of its message is in flight. Round numbers do not change.
Schedule slice(const Schedule& schedule, size_t max_elements);

// The group as a grid for topology-aware algorithms, fastest axis first. The product of dims is the group size.
struct RankGrid {
  std::vector<int> dims;
};

struct CollectiveSpec {
  Op op = Op::all_reduce;
  int rank = 0, size = 1;
  size_t count = 0;  // size of the full logical buffer in elements
  int root = 0;
  RankGrid shape;    // empty: no grid
  int segments = 0;  // number of segments of pipelined algorithms; 0: chosen by the algorithm
  // all_to_all_v: number of elements to and from each rank, and their offsets.
  std::span<const size_t> send_counts, send_offsets, recv_counts, recv_offsets;
};

// Builds the schedule of one rank. Zero-size messages are dropped, except in a barrier, where the arrival is the
// information.
using Builder = Schedule (*)(const CollectiveSpec& spec);

// One row of algo/table.cpp.
struct AlgorithmRow {
  std::string_view name;
  Op op;
  std::string_view help;
  Builder build;
  // Null: the algorithm is always applicable. Otherwise returns why it is not applicable («needs a power-of-two number
  // of ranks; got 6»), or an empty string.
  std::string (*applies)(const CollectiveSpec& spec);
  // Predicted time in seconds by the formulas of docs/algorithms.md. All links are equal: alpha in s per message, beta
  // in s/B.
  double (*cost)(const CollectiveSpec& spec, size_t element_bytes, double alpha, double beta);
};

}  // namespace esp::comm
