// Collectives in the event simulation. The schedules that ranks execute (esp/comm) become tasks of the engine, with the
// dependencies that the executor uses. A port sends and receives messages in the order of the schedule.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/plan/simulate/event_engine.h"

namespace esp::plan {

// Dependency graph of one collective call. It does not depend on where the ranks run, so it is built once and added to
// an engine for each call.
class CollectiveGraph {
 public:
  // `schedules`: one per rank. UsageError if a send has no receive or a receive has no send.
  CollectiveGraph(std::span<const comm::Schedule> schedules, size_t element_bytes);

  int size() const { return size_; }
  size_t num_nodes() const { return nodes_.size(); }
  double bytes_sent(int rank) const { return sent_[static_cast<size_t>(rank)]; }
  double bytes_received(int rank) const { return received_[static_cast<size_t>(rank)]; }

  struct TransferNode {
    int from = 0, to = -1;  // ranks; to = −1: local work, which takes no time
    double bytes = 0;
    std::vector<uint32_t> before;
  };
  std::span<const TransferNode> nodes() const { return nodes_; }  // not sorted by dependency

 private:
  int size_ = 0;
  std::vector<TransferNode> nodes_;
  std::vector<double> sent_, received_;
};

// The send port and the receive port of each rank, and the route between two ranks.
struct CollectivePorts {
  std::vector<StreamId> out, in;  // index: rank within the group
  struct LinkPath {
    RouteId route = kNoId;
    double alpha_s = 0;
  };
  std::function<LinkPath(int from, int to)> path;
};

// Adds one call to the engine. Rank r starts after task ready[r]; kNoId: at time 0. Returns the last task of each rank.
std::vector<TaskId> add_collective(EventEngine& engine, const CollectiveGraph& shape, const CollectivePorts& ports,
                                   std::span<const TaskId> ready);

// Result of time_collective(): one call on an idle network of equal links with latency α.
struct CollectiveTime {
  double seconds = 0;
  uint64_t events = 0;
  double wall_s = 0;  // real time that the simulation took
};
CollectiveTime time_collective(std::span<const comm::Schedule> schedules, size_t element_bytes, double alpha_s,
                               double bytes_per_s);

// The schedules of all ranks for one algorithm of a collective.
std::vector<comm::Schedule> schedules_of(const comm::AlgorithmRow& row, const comm::CollectiveSpec& problem);

}  // namespace esp::plan
