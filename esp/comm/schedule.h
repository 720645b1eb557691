// A collective algorithm as data: the actions of one rank. The executor runs it on any transport, the simulator times
// it, the validator proves it, and the replay repeats its summation order in one process.
//
// Actions are in order; `round` counts as in the literature (one exchange by all ranks, full duplex). Running strictly
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

// `input` is read only. A schedule that starts from the input in `output` contains a copy action; in-place calls make
// that copy free (same pointer).
enum class Buffer : uint8_t { input, output, scratch };

struct BufferRegion {
  Buffer buffer = Buffer::output;
  size_t offset = 0, count = 0;
  bool overlaps(const BufferRegion& other) const {
    return buffer == other.buffer && offset < other.offset + other.count && other.offset < offset + count;
  }
};

enum class Act : uint8_t {
  send,            // region to peer
  receive,         // peer's message into region
  receive_reduce,  // region = region op message
  copy,            // region = sources[0]
  reduce,          // region = sources[0] op sources[1] op … in this order, rounded once
};

struct Action {
  Act act = Act::send;
  int round = 0;
  int peer = -1;
  BufferRegion region;
  std::vector<BufferRegion> sources;  // copy and reduce only
};

struct Schedule {
  std::vector<Action> actions;
  size_t scratch_count = 0;  // elements
  int num_rounds = 0;        // of the whole algorithm, the same on every rank
};

// Splits messages longer than max_elements into slices, on both ends alike, and local work to match, so a slice can be
// forwarded while the rest is still in flight. Round numbers do not change.
Schedule slice(const Schedule& schedule, size_t max_elements);

// The group as a grid for topology-aware algorithms, fastest axis first. dims multiply to the group size.
struct RankGrid {
  std::vector<int> dims;
};

struct CollectiveSpec {
  Op op = Op::all_reduce;
  int rank = 0, size = 1;
  size_t count = 0;  // full logical buffer, elements
  int root = 0;
  RankGrid shape;    // empty: flat
  int segments = 0;  // pipelined algorithms; 0: their own choice
  // all_to_all_v: elements to and from each rank, and where they start.
  std::span<const size_t> send_counts, send_offsets, recv_counts, recv_offsets;
};

// Zero-size messages are dropped from a schedule, except those of a barrier, whose arrival is the information.
using Builder = Schedule (*)(const CollectiveSpec& spec);

// One row of algo/table.cpp.
struct AlgorithmRow {
  std::string_view name;
  Op op;
  std::string_view help;
  Builder build;
  // Null: always applies. Otherwise returns the reason it does not («needs a power-of-two number of ranks; got 6»), or
  // empty.
  std::string (*applies)(const CollectiveSpec& spec);
  // Seconds by the table of docs/algorithms.md for S bytes with one tier (alpha s, beta s/B).
  double (*cost)(const CollectiveSpec& spec, size_t element_bytes, double alpha, double beta);
};

}  // namespace esp::comm
