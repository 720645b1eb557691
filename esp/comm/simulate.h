// Simulates schedules in virtual time without moving data, by the same rule as net's virtual network. The planner uses
// it to predict the time of thousands of ranks in one thread.
//
// A message starts when both ends are ready (the earlier actions on its memory are done) and both ports are free. It
// takes α + xβ for x bytes. Ports serve messages in list order, one at a time per direction. Local work takes no time.
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
  int64_t end_ps = 0;  // end time of the last message of the rank
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
  // filled only if keep_messages is true; in order of completion at the receivers
  std::vector<SimulatedMessage> messages;
};

using LinkCosts = std::function<net::LinkCost(int from, int to)>;

// Throws UsageError if the schedules deadlock.
SimulationResult simulate(std::span<const Schedule> schedules, size_t element_bytes, const LinkCosts& cost,
                          bool keep_messages = false);
// The same simulation, with equal cost on all links.
SimulationResult simulate(std::span<const Schedule> schedules, size_t element_bytes, net::LinkCost cost);

}  // namespace esp::comm
