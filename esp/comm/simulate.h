// Simulates schedules in virtual time without moving data, by the same rule as net's virtual network, so that the
// planner can time thousands of ranks in one thread.
//
// A message starts when both ends are ready (the earlier actions on its memory are done) and both ports are free, and
// takes α + xβ. Ports serve in list order, one message at a time per direction. Local work is free. Times are exact, in
// picoseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/net/virtual/network.h"

namespace esp::comm {

struct SimulatedRank {
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t messages_sent = 0, messages_received = 0;
  int64_t end_ps = 0;  // end of its last message
};

struct SimulatedMessage {
  int round = 0, from = 0, to = 0;
  size_t bytes = 0;
  int64_t start_ps = 0, end_ps = 0;
};

struct SimulationResult {
  int64_t time_ps = 0;
  int num_rounds = 0;
  uint64_t num_messages = 0;
  std::vector<SimulatedRank> ranks;
  std::vector<SimulatedMessage> messages;  // optional; in order of completion at the receivers
};

using LinkCosts = std::function<net::LinkCost(int from, int to)>;

// UsageError on deadlock.
SimulationResult simulate(std::span<const Schedule> schedules, size_t element_bytes, const LinkCosts& cost,
                          bool keep_messages = false);
// All links equal.
SimulationResult simulate(std::span<const Schedule> schedules, size_t element_bytes, net::LinkCost cost);

}  // namespace esp::comm
