// What a set of schedules costs, without moving data: the rule of net's virtual network, applied to the schedules
// themselves, so that the planner times thousands of ranks in one thread.
//
// A message starts when it is ready at both ends (the earlier actions that touch its memory are done) and both ports
// are free, and takes α + xβ; ports serve in list order, one message at a time each way. Local work costs nothing.
// Times are exact, in picoseconds.
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
  int64_t end_ps = 0;  // when its last message ended
};

struct SimulatedMessage {
  int round = 0, from = 0, to = 0;
  size_t bytes = 0;
  int64_t start_ps = 0, end_ps = 0;
};

struct Simulated {
  int64_t time_ps = 0;
  int num_rounds = 0;
  uint64_t num_messages = 0;
  std::vector<SimulatedRank> ranks;
  std::vector<SimulatedMessage> messages;  // when asked for, in order of completion at the receivers
};

using LinkCosts = std::function<net::LinkCost(int from, int to)>;

// UsageError when the ranks wait for each other forever.
Simulated simulate(std::span<const Schedule> schedules, size_t element_bytes, const LinkCosts& cost,
                   bool keep_messages = false);
// Every link alike.
Simulated simulate(std::span<const Schedule> schedules, size_t element_bytes, net::LinkCost cost);

}  // namespace esp::comm
