// Collectives in the event simulation: the schedules that ranks execute (esp/comm), with the dependencies of the
// executor, as tasks of the engine. Every message is its sender's k-th and its receiver's j-th: ports serve in list
// order.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/plan/simulate/event_engine.h"

namespace esp::plan {

// The dependency graph of one call's schedules, independent of the ranks' placement: built once, added to an engine per
// call.
class CollectiveShape {
 public:
  // By rank. UsageError: a message with only one end.
  CollectiveShape(std::span<const comm::Schedule> schedules, size_t element_bytes);

  int size() const { return size_; }
  size_t num_nodes() const { return nodes_.size(); }
  double bytes_sent(int rank) const { return sent_[static_cast<size_t>(rank)]; }
  double bytes_received(int rank) const { return received_[static_cast<size_t>(rank)]; }

  struct Node {
    int from = 0, to = -1;  // to −1: local work, without cost
    double bytes = 0;
    std::vector<uint32_t> before;
  };
  std::span<const Node> nodes() const { return nodes_; }  // in any order

 private:
  int size_ = 0;
  std::vector<Node> nodes_;
  std::vector<double> sent_, received_;
};

// The ports of the ranks' messages, and the routes between ranks.
struct CollectivePorts {
  std::vector<StreamId> out, in;  // by rank of the group
  struct Way {
    RouteId route = kNone;
    double alpha_s = 0;
  };
  std::function<Way(int from, int to)> way;
};

// Adds one call: rank r takes part after `ready[r]` (kNone: from the start). Returns the last task of each rank.
std::vector<TaskId> add_collective(EventEngine& engine, const CollectiveShape& shape, const CollectivePorts& ports,
                                   std::span<const TaskId> ready);

// One call alone, with equal links: α, bytes/s.
struct CollectiveTime {
  double seconds = 0;
  uint64_t events = 0;
  double took_s = 0;  // run time of the simulation itself
};
CollectiveTime time_collective(std::span<const comm::Schedule> schedules, size_t element_bytes, double alpha_s,
                               double bytes_per_s);

// The schedules of all ranks for one row of the table of algorithms.
std::vector<comm::Schedule> schedules_of(const comm::AlgorithmRow& row, const comm::CollectiveSpec& problem);

}  // namespace esp::plan
