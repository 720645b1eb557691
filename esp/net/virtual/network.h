// VirtualNetwork: a simulated network with an α-β cost model: the cost of a message between two ranks, and when each
// port is free.
//
// Time is in integer picoseconds, so that sums equal the formulas exactly: 1 µs + n bytes at 12.5 GB/s is 1'000'000 +
// 80·n. A rank has one output port and one input port, each with one message at a time (full duplex, single port). A
// message of x bytes starts when both ends are ready and both ports are free. It takes α + x·β of its tier and occupies
// both ports meanwhile. Local work costs nothing.
//
// Shared by the ranks of one process; any thread may call. It outlives every transport that uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace esp::net {

struct LinkCost {
  int64_t alpha_ps = 0;          // latency α of one message
  int64_t beta_ps_per_byte = 0;  // time β per byte; 80 ps corresponds to 12.5 GB/s
};

class VirtualNetwork {
 public:
  // `tier_of(a, b)` is the index in `tiers` of the link between two world ranks. `node_of(rank)` is the machine of a
  // rank, for hierarchical algorithms.
  VirtualNetwork(int size, std::vector<LinkCost> tiers, std::function<int(int, int)> tier_of,
                 std::function<int(int)> node_of);
  // A network in which all pairs have equal cost.
  static std::shared_ptr<VirtualNetwork> flat(int size, LinkCost cost);
  // A two-level network: ranks 0..k-1 on the first node, the next k on the second, and so on.
  static std::shared_ptr<VirtualNetwork> nodes(int size, int ranks_per_node, LinkCost inside, LinkCost across);

  int size() const { return static_cast<int>(ports_.size()); }
  int node_of(int rank) const { return node_of_(rank); }
  int64_t cost_ps(int from, int to, size_t bytes) const;

  // Simulates a message whose two ends are ready at `ready_ps`; returns the time at which it ends.
  int64_t carry(int from, int to, size_t bytes, int64_t ready_ps);
  // Records that an operation of `rank` ended at `end_ps`.
  void finished(int rank, int64_t end_ps);

  // The time at which a rank's last finished message ended. The job's time is the maximum over all ranks.
  int64_t clock_ps(int rank) const;
  int64_t job_ps() const;

 private:
  struct Ports {
    int64_t out_free_ps = 0, in_free_ps = 0, clock_ps = 0;
  };
  const std::vector<LinkCost> tiers_;
  const std::function<int(int, int)> tier_of_;
  const std::function<int(int)> node_of_;
  mutable std::mutex mutex_;  // guards ports_
  std::vector<Ports> ports_;
};

}  // namespace esp::net
