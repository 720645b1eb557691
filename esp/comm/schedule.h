// A collective algorithm as data: what one rank does, action by action. The executor runs it on any transport, the
// simulator costs it, the validator proves it, the replay reducer repeats its order of summation in one process.
//
// Actions stand in order; `round` labels them as the literature counts (a round is one exchange by all ranks, full
// duplex). Running strictly in order, with sends buffered, is always correct; the executor may run an action as soon as
// the earlier actions that touch overlapping regions are done, and messages between two ranks always match in list
// order. Offsets and counts are elements, so one schedule serves every element type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "esp/comm/call.h"

namespace esp::comm {

// `input` is read only. A schedule that starts from the input in `output` says so with a copy action; in-place calls
// make that copy free (same pointer).
enum class Buffer : uint8_t { input, output, scratch };

struct Region {
  Buffer buffer = Buffer::output;
  size_t offset = 0, count = 0;
  bool overlaps(const Region& other) const {
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
  Region region;
  std::vector<Region> sources;  // copy and reduce only
};

struct Schedule {
  std::vector<Action> actions;
  size_t scratch_count = 0;  // elements
  int num_rounds = 0;        // of the whole algorithm, the same on every rank
};

// The same schedule with messages longer than max_elements cut in pieces, both ends alike, and local work cut to match:
// what arrived can be passed on while the rest is still coming. Rounds keep their numbers.
Schedule slice(const Schedule& schedule, size_t max_elements);

// Where ranks sit, for the topology-aware algorithms: the group as a grid, fastest axis first. dims multiply to size.
struct Shape {
  std::vector<int> dims;
};

struct Problem {
  Op op = Op::all_reduce;
  int rank = 0, size = 1;
  size_t count = 0;  // full logical buffer, elements
  int root = 0;
  Shape shape;       // empty: flat
  int segments = 0;  // pipelined algorithms; 0: their own choice
  // all_to_all_v: elements to and from each rank, and where they start.
  std::span<const size_t> send_counts, send_offsets, recv_counts, recv_offsets;
};

// Zero-size messages are dropped from a schedule: no action, no message. A barrier's are kept: they carry no bytes, and
// their arrival is what they say.
using Builder = Schedule (*)(const Problem& problem);

// One row of algo/table.cpp.
struct AlgorithmRow {
  std::string_view name;
  Op op;
  std::string_view help;
  Builder build;
  // Null: any. Otherwise why not («needs a power of two, 6 given»), empty when it applies.
  std::string (*applies)(const Problem& problem);
  // Seconds by the table of docs/algorithms.md for S bytes with one tier (alpha s, beta s/B).
  double (*cost)(const Problem& problem, size_t element_bytes, double alpha, double beta);
};

}  // namespace esp::comm
