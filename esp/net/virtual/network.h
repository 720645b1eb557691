// A network that exists in figures only: what a message costs between two ranks, and when each port is free.
//
// Time is counted in picoseconds, as integers, so that sums come out as the formulas say: 1 µs + n bytes at 12.5 GB/s
// is exactly 1'000'000 + 80·n. A rank has one port out and one port in, each with one message at a time (full duplex,
// single port). A message of x bytes starts when it is ready at both ends and both ports are free, and takes α + x·β of
// its tier; both ports are busy meanwhile. Local work costs nothing.
//
// Shared by the ranks of one process; any thread may call. It outlives every transport on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace esp::net {

struct LinkCost {
  int64_t alpha_ps = 0;          // per message
  int64_t beta_ps_per_byte = 0;  // 80 is 12.5 GB/s
};

class VirtualNetwork {
 public:
  // `tier_of(a, b)` is the index in `tiers` of the link between two world ranks; `node_of(rank)` says which machine a
  // rank is on, for algorithms that ask who is near.
  VirtualNetwork(int size, std::vector<LinkCost> tiers, std::function<int(int, int)> tier_of,
                 std::function<int(int)> node_of);
  // Every pair alike.
  static std::shared_ptr<VirtualNetwork> flat(int size, LinkCost cost);
  // Ranks 0..k-1 on the first node, the next k on the second, and so on.
  static std::shared_ptr<VirtualNetwork> nodes(int size, int ranks_per_node, LinkCost inside, LinkCost across);

  int size() const { return static_cast<int>(ports_.size()); }
  int node_of(int rank) const { return node_of_(rank); }
  int64_t cost_ps(int from, int to, size_t bytes) const;

  // Carries a message that is ready at `ready_ps` on both sides: returns when it ends.
  int64_t carry(int from, int to, size_t bytes, int64_t ready_ps);
  // Tells that `rank` has finished something that ended then.
  void finished(int rank, int64_t end_ps);

  // When the last of a rank's finished messages ended; the job's time is the latest of all.
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
