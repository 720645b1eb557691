// A collective as events: the schedules that ranks execute (esp/comm), with the dependencies by which the executor runs
// them, as tasks of the engine. Every message is its sender's k-th and its receiver's j-th: ports serve in list order.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/plan/simulate/engine.h"

namespace esp::plan {

// What the schedules of one call come to, whoever the ranks are: made once, added to an engine as often as it is
// called.
class CollectiveShape {
 public:
  // By rank. UsageError: a message that one end does not know of.
  CollectiveShape(std::span<const comm::Schedule> schedules, size_t element_bytes);

  int size() const { return size_; }
  size_t num_nodes() const { return nodes_.size(); }
  double bytes_sent(int rank) const { return sent_[static_cast<size_t>(rank)]; }
  double bytes_received(int rank) const { return received_[static_cast<size_t>(rank)]; }

  struct Node {
    int from = 0, to = -1;  // to −1: local work, which costs nothing
    double bytes = 0;
    std::vector<uint32_t> before;
  };
  std::span<const Node> nodes() const { return nodes_; }  // any order

 private:
  int size_ = 0;
  std::vector<Node> nodes_;
  std::vector<double> sent_, received_;
};

// Where a rank's messages leave and arrive, and how one gets from rank to rank.
struct CollectivePorts {
  std::vector<StreamId> out, in;  // by rank of the group
  struct Way {
    RouteId route = kNone;
    double alpha_s = 0;
  };
  std::function<Way(int from, int to)> way;
};

// Adds one call: rank r takes part from `ready[r]` on (kNone: from the start). What each rank's part ends with.
std::vector<TaskId> add_collective(Engine& engine, const CollectiveShape& shape, const CollectivePorts& ports,
                                   std::span<const TaskId> ready);

// One call alone, every link alike: α, bytes/s.
struct CollectiveTime {
  double seconds = 0;
  uint64_t events = 0;
  double took_s = 0;  // of this machine, for the events alone
};
CollectiveTime time_collective(std::span<const comm::Schedule> schedules, size_t element_bytes, double alpha_s,
                               double bytes_per_s);

// The schedules of all ranks by one row of the table of algorithms.
std::vector<comm::Schedule> schedules_of(const comm::AlgorithmRow& row, const comm::Problem& problem);

}  // namespace esp::plan
