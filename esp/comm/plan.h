// A schedule made ready to run on one rank: dependencies found, messages sorted into lanes, memory set aside.
//
// A lane is the messages to one peer or from one peer; they are issued in list order, so that both ends agree. A step
// may start once the earlier steps that touch the same memory are done (read after write, write after read, write after
// write). Finding that takes a pass over the intervals; running takes counters only, and allocates nothing.
//
// In place: when `in` and `out` are one piece of memory, `alias` says how they lie and dependencies are found on the
// memory itself. A schedule that needs an input after its place was overwritten, or exchanges a place with a peer in
// one round, gets a copy of the input (`stash`). A copy of the input is not made as long as what follows can read the
// input instead.
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
struct Spot {
  Buffer buffer = Buffer::output;
  size_t offset = 0;
};

struct Step {
  Act act = Act::send;
  bool from_operand = false;  // receive_reduce: region = operand op message, the operand being sources[first_source]
  int lane = -1;              // messages only
  uint32_t message = 0;       // messages only: which one of its lane
  Spot place;
  size_t bytes = 0;
  uint32_t first_source = 0, num_sources = 0;
  uint32_t num_before = 0;                  // steps that must be done first
  uint32_t first_after = 0, num_after = 0;  // steps that wait for this one
};

struct Lane {
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
  std::vector<Step> steps;
  std::vector<Spot> sources;
  std::vector<uint32_t> after, before;  // before: for transports that need issue order, the same edges backwards
  std::vector<uint32_t> first_before;
  std::vector<Lane> lanes;
  std::vector<uint32_t> lane_steps;
  size_t input_bytes = 0, scratch_bytes = 0;
  bool stash = false;
  int num_rounds = 0;

  // What a run needs, reused by the next.
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

// The schedule without copies of the input that later actions make needless. A receive_reduce of the result may
// carry one source: its first operand.
Schedule forward_copies(const Schedule& schedule);

}  // namespace esp::comm
