#include "esp/sync/bucket_queue.h"

#include "esp/base/check.h"

namespace esp::sync {

BucketQueue::BucketQueue(std::vector<GradientBucket> buckets, Launch launch)
    : buckets_(std::move(buckets)), launch_(std::move(launch)), missing_(buckets_.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    arrived_.emplace_back(buckets_[b].parameters.size());
    for (size_t place = 0; place < buckets_[b].parameters.size(); ++place)
      buckets_[b].parameters[place]->weight.on_ready = [this, b, place] { ready(b, place); };
  }
}

std::vector<int32_t> BucketQueue::completion_order() const {
  std::vector<int32_t> places;
  for (const nn::Parameter* p : order_) places.push_back(p->index);
  return places;
}

void BucketQueue::arm() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    arrived_[b].assign(arrived_[b].size(), false);
    missing_[b] = arrived_[b].size();
  }
  order_.clear();
  next_ = 0;
  armed_ = true;
}

void BucketQueue::ready(size_t bucket, size_t place) {
  if (!armed_) return;
  ESP_CHECK(!arrived_[bucket][place], "gradient of {}: completed twice in one pass",
            buckets_[bucket].parameters[place]->name);
  arrived_[bucket][place] = true;
  order_.push_back(buckets_[bucket].parameters[place]);
  --missing_[bucket];
  launch_ready();
}

void BucketQueue::launch_ready() {
  while (next_ < buckets_.size() && missing_[next_] == 0) launch_(next_++);
}

void BucketQueue::flush(const std::function<void(nn::Parameter&)>& untouched) {
  if (!armed_) return;
  armed_ = false;
  for (size_t b = next_; b < buckets_.size(); ++b) {
    for (size_t place = 0; place < arrived_[b].size(); ++place)
      if (!arrived_[b][place]) {
        untouched(*buckets_[b].parameters[place]);
        order_.push_back(buckets_[b].parameters[place]);
      }
    missing_[b] = 0;
  }
  launch_ready();
}

}  // namespace esp::sync
