// A schedule compiled for one rank: dependencies, messages per peer, memory.
//
// A lane holds the messages to or from one peer; they are issued in list order, so both ends match. A step may start
// once the earlier steps that touch the same memory are done (read after write, write after read, write after write).
// Compiling takes one pass over intervals; running only decrements counters and allocates nothing.
//
// In place: when `in` and `out` share memory, `alias` gives their offset and dependencies are computed on the memory
// itself. A schedule that needs an input after it was overwritten, or that exchanges memory with a peer in one round,
// gets a copy of the input (`stash`). A copy of the input is skipped while later steps can read the input instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/net/transport.h"

namespace esp::comm {

// Bytes from the start of a buffer.
struct BufferOffset {
  Buffer buffer = Buffer::output;
  size_t offset = 0;
};

struct PlanStep {
  Act act = Act::send;
  bool from_operand = false;  // receive_reduce: region = operand op message, the operand being sources[first_source]
  int lane = -1;              // messages only
  uint32_t message = 0;       // messages only: which one of its lane
  BufferOffset place;
  size_t bytes = 0;
  uint32_t first_source = 0, num_sources = 0;
  uint32_t num_before = 0;                  // steps this one depends on
  uint32_t first_after = 0, num_after = 0;  // steps that depend on this one
};

struct MessageLane {
  int peer = -1;
  bool sends = false;
  uint32_t first = 0, count = 0;  // in Plan::lane_steps
};

struct ReduceContext {
  DType dtype;
  ReduceOp op;
  ptrdiff_t operand = 0;  // bytes from the destination to the first operand
};

struct Plan {
  std::vector<PlanStep> steps;
  std::vector<BufferOffset> sources;
  std::vector<uint32_t> after, before;  // before: the reverse edges, for transports that need issue order
  std::vector<uint32_t> first_before;
  std::vector<MessageLane> lanes;
  std::vector<uint32_t> lane_steps;
  size_t input_bytes = 0, scratch_bytes = 0;
  bool stash = false;
  int num_rounds = 0;

  // State of a run, reused by the next.
  std::vector<net::Transfer> transfers;  // by step
  std::vector<ReduceContext> contexts;   // by step
  std::vector<uint32_t> waiting;
  std::vector<uint32_t> posted, finished;  // by lane
  std::vector<int64_t> end_ps;             // by step, under a virtual clock
  std::vector<uint32_t> ready;             // local steps about to run
  std::vector<const void*> operands;
  std::unique_ptr<std::byte[]> memory;  // scratch, then the stashed input
};

// `alias`: element offset of the input's start from the output's start when they share memory; none otherwise.
// `input_count`: elements of the input on this rank.
std::unique_ptr<Plan> make_plan(const Schedule& schedule, size_t element_bytes, std::optional<ptrdiff_t> alias,
                                size_t input_count);

// The schedule without needless copies of the input. A receive_reduce may carry one source: its first operand.
Schedule forward_copies(const Schedule& schedule);

}  // namespace esp::comm
