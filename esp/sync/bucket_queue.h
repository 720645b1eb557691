// Which buckets are ready: counts gradients as backward delivers them and launches full buckets in index order, so that
// every rank launches alike whatever became ready first.
//
// One thread, the one that runs backward. Between `arm` and `flush` each parameter's gradient is expected once.
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
  // Places in the list of the parameters, in the order in which the last backward finished them; the untouched last.
  std::vector<int32_t> observed() const;
  void arm();  // the gradients of the backward to come leave when they are ready
  // After backward: calls `untouched` for each parameter that had no part in it, then launches what is left.
  void flush(const std::function<void(nn::Parameter&)>& untouched);

 private:
  void ready(size_t bucket, size_t place);
  void launch_ready();

  std::vector<Bucket> buckets_;
  Launch launch_;
  std::vector<std::vector<bool>> arrived_;  // by bucket and place in it
  std::vector<size_t> missing_;
  std::vector<const nn::Parameter*> order_;  // as they came
  size_t next_ = 0;                          // the first bucket not launched
  bool armed_ = false;
};

}  // namespace esp::sync
