// What a copy says to those that hear it and hears from others, and the average of it.
//
// One message to each listener and one from each that is heard, all of them together in one group, so that no order can
// block. They are added in ascending order of the copies, whenever they came.
#pragma once

#include <vector>

#include "esp/sync/gossip/topology.h"
#include "esp/sync/ranks.h"

namespace esp::sync {

class Neighbours {
 public:
  Neighbours(Ranks& copies, const tensor::Context& context) : copies_(copies), context_(context) {}

  struct Flight {
    const Mixing* mixing = nullptr;
    tensor::Tensor own;
    std::vector<tensor::Tensor> heard;  // as in the row; undefined where it is this copy itself
    Work work;
  };
  // `x` stays as it is until `combine`.
  Flight start(const Mixing& mixing, const tensor::Tensor& x);
  void combine(Flight& flight);  // x becomes the average

 private:
  Ranks& copies_;
  const tensor::Context context_;
};

}  // namespace esp::sync
