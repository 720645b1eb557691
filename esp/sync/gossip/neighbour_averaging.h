// Neighbour averaging: sends this replica's vector to its out-neighbours, receives the vectors of its neighbours, and
// averages them.
//
// All messages of a step, one to each out-neighbour and one from each neighbour, form one group call, so their order
// cannot cause a deadlock. Vectors are added in ascending replica order, not in the order of arrival.
#pragma once

#include <vector>

#include "esp/sync/gossip/gossip_topology.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class NeighbourAveraging {
 public:
  NeighbourAveraging(TimedCommunicator& replicas, const tensor::Context& context)
      : replicas_(replicas), context_(context) {}

  struct PendingExchange {
    const MixingMatrix* mixing = nullptr;
    tensor::Tensor own;
    // one vector per entry of this replica's row of W; undefined for the replica itself
    std::vector<tensor::Tensor> received;
    Work work;
  };
  // Starts sending and receiving. `x` must not change until `combine`.
  PendingExchange start(const MixingMatrix& mixing, const tensor::Tensor& x);
  void combine(PendingExchange& pending);  // waits for the messages; replaces x by the average

 private:
  TimedCommunicator& replicas_;
  const tensor::Context context_;
};

}  // namespace esp::sync
