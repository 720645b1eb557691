// Neighbour averaging: sends the replica's vector to its listeners, receives those of its neighbours, and averages.
//
// One message per listener and one per neighbour, all in one group call, so no order can deadlock. Vectors are added in
// ascending replica order, independent of arrival.
#pragma once

#include <vector>

#include "esp/sync/gossip/gossip_topology.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class Neighbours {
 public:
  Neighbours(TimedCommunicator& replicas, const tensor::Context& context) : replicas_(replicas), context_(context) {}

  struct Flight {
    const MixingMatrix* mixing = nullptr;
    tensor::Tensor own;
    std::vector<tensor::Tensor> received;  // as in the row; undefined for this replica itself
    Work work;
  };
  // `x` must stay unchanged until `combine`.
  Flight start(const MixingMatrix& mixing, const tensor::Tensor& x);
  void combine(Flight& flight);  // x becomes the average

 private:
  TimedCommunicator& replicas_;
  const tensor::Context context_;
};

}  // namespace esp::sync
