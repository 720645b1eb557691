// A schedule compiled for one rank: dependencies, messages per peer, memory.
//
// A lane holds the messages to or from one peer. They are issued in list order on both ends, so they match. A step may
// start once the earlier steps that touch the same memory are done (read after write, write after read, write after
// write). Compiling takes one pass over intervals; running only decrements counters and allocates no memory.
//
// In place: when `in` and `out` share memory, `alias` gives their offset, and dependencies are computed on the shared
// memory. The input is copied to `stash` first if the schedule needs it after it was overwritten, or exchanges it with
// a peer in one round. Copies of the input are skipped while later steps can read the input instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/net/transport.h"

namespace esp::comm {

// Offset in bytes from the start of a buffer.
struct BufferOffset {
  Buffer buffer = Buffer::output;
  size_t offset = 0;
};

struct PlanStep {
  ActionType type = ActionType::send;
  // receive_reduce only. true: region = operand op message, with the operand at sources[first_source]
  bool from_operand = false;
  int lane = -1;         // index of the lane; set only for messages
  uint32_t message = 0;  // index of the message within its lane; set only for messages
  BufferOffset location;
  size_t bytes = 0;
  uint32_t first_source = 0, num_sources = 0;
  uint32_t num_before = 0;                  // number of steps this step depends on
  uint32_t first_after = 0, num_after = 0;  // range in Plan::after of the steps that depend on this step
};

struct MessageLane {
  int peer = -1;
  bool sends = false;
  uint32_t first = 0, count = 0;  // range in Plan::lane_steps
};

struct ReduceContext {
  DType dtype;
  ReduceOp op;
  ptrdiff_t operand = 0;  // offset in bytes from the destination to the first operand
};

struct Plan {
  std::vector<PlanStep> steps;
  std::vector<BufferOffset> sources;
  // `after`: for each step, the steps that depend on it. `before`: the steps it depends on; needed only by transports
  // whose issue order determines the result.
  std::vector<uint32_t> after, before;
  std::vector<uint32_t> first_before;
  std::vector<MessageLane> lanes;
  std::vector<uint32_t> lane_steps;
  size_t input_bytes = 0, scratch_bytes = 0;
  bool stash = false;
  int num_rounds = 0;

  // Working state of one execution of the plan; the next execution uses the same memory.
  std::vector<net::Transfer> transfers;  // indexed by step
  std::vector<ReduceContext> contexts;   // indexed by step
  std::vector<uint32_t> waiting;
  std::vector<uint32_t> posted, finished;  // indexed by lane
  std::vector<int64_t> end_ps;             // end time of each step; used only with a virtual clock
  std::vector<uint32_t> ready;             // local steps that are ready to run
  std::vector<const void*> operands;
  std::unique_ptr<std::byte[]> memory;  // scratch memory, followed by the stashed input
};

// `alias`: element offset of the input's start from the output's start when they share memory; none otherwise.
// `input_count`: elements of the input on this rank.
std::unique_ptr<Plan> make_plan(const Schedule& schedule, size_t element_bytes, std::optional<ptrdiff_t> alias,
                                size_t input_count);

// Returns the schedule without unnecessary copies of the input. In the result a receive_reduce may have one source, its
// first operand.
Schedule forward_copies(const Schedule& schedule);

}  // namespace esp::comm
