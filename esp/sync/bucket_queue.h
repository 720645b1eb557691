// Gradient bucket queue: counts gradients as backward delivers them and launches full buckets in index order. Every
// rank launches in the same order, independent of the order in which its gradients complete.
//
// One thread, the one that runs backward. Between `arm` and `flush` each parameter's gradient arrives at most once.
#pragma once

#include <functional>
#include <vector>

#include "esp/sync/buckets.h"

namespace esp::sync {

class BucketQueue {
 public:
  using Launch = std::function<void(size_t bucket)>;
  // Sets on_ready of every parameter.
  BucketQueue(std::vector<Bucket> buckets, Launch launch);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Indices in the parameter list, in the order in which the last backward completed them; parameters without a
  // gradient come last.
  std::vector<int32_t> observed() const;
  void arm();  // the next backward launches buckets
  // After backward: calls `untouched` for each parameter without a gradient, then launches the remaining buckets.
  void flush(const std::function<void(nn::Parameter&)>& untouched);

 private:
  void ready(size_t bucket, size_t place);
  void launch_ready();

  std::vector<Bucket> buckets_;
  Launch launch_;
  std::vector<std::vector<bool>> arrived_;  // by bucket and parameter in it
  std::vector<size_t> missing_;
  std::vector<const nn::Parameter*> order_;  // in order of completion
  size_t next_ = 0;                          // the first bucket that is not launched
  bool armed_ = false;
};

}  // namespace esp::sync
