// Gradient bucket queue: counts gradients as backward delivers them and launches complete gradient buckets in index
// order. Every rank launches in the same order, independent of the order in which its gradients complete.
//
// Called only from the thread that runs backward. Between `arm` and `flush` each parameter's gradient arrives at most
// once.
#pragma once

#include <functional>
#include <vector>

#include "esp/sync/buckets.h"

namespace esp::sync {

class BucketQueue {
 public:
  using Launch = std::function<void(size_t bucket)>;
  // Sets on_ready of every parameter.
  BucketQueue(std::vector<GradientBucket> buckets, Launch launch);

  const std::vector<GradientBucket>& buckets() const { return buckets_; }
  // The indices of the parameters in the order in which the last backward completed their gradients. Parameters without
  // a gradient come last.
  std::vector<int32_t> completion_order() const;
  void arm();  // the next backward launches gradient buckets
  // After backward: calls `untouched` for each parameter without a gradient, then launches the remaining gradient
  // buckets.
  void flush(const std::function<void(nn::Parameter&)>& untouched);

 private:
  void ready(size_t bucket, size_t place);
  void launch_ready();

  std::vector<GradientBucket> buckets_;
  Launch launch_;
  std::vector<std::vector<bool>> arrived_;  // [bucket][index of the parameter in the bucket]: its gradient has arrived
  std::vector<size_t> missing_;
  std::vector<const nn::Parameter*> order_;  // parameters in the order in which their gradients completed
  size_t next_ = 0;                          // index of the first gradient bucket that is not launched yet
  bool armed_ = false;
};

}  // namespace esp::sync
