#include "esp/plan/dry_run/strategy_hooks.h"

#include <algorithm>

namespace esp::plan::dry_run {

Zero2Hooks::Zero2Hooks(DryRunRecorder& recorder, const BucketSizes& bucket_sizes, size_t max_in_flight,
                       bool accumulate_locally)
    : recorder_(recorder),
      bucket_sizes_(bucket_sizes),
      max_in_flight_(max_in_flight),
      accumulate_locally_(accumulate_locally),
      buffers_(bucket_sizes.bucket_counts.size()),
      num_missing_(bucket_sizes.bucket_counts.size()) {}

void Zero2Hooks::begin_pass() {
  scattering_ = last_pass || !accumulate_locally_;
  next_bucket_ = 0;
  num_missing_ = bucket_sizes_.weights_per_bucket;
}

void Zero2Hooks::gradient(DryRunWeight& weight) {
  BufferHandle& bucket = buffers_[weight.bucket];
  if (!bucket)
    bucket = std::make_shared<CountedBuffer>(recorder_, MemoryCategory::buffer,
                                             bucket_sizes_.bucket_counts[weight.bucket] * bucket_sizes_.element_bytes);
}

void Zero2Hooks::ready(DryRunWeight& weight) {
  if (!scattering_) return;
  --num_missing_[weight.bucket];
  while (next_bucket_ < num_missing_.size() && num_missing_[next_bucket_] == 0) start_scatter(next_bucket_++);
}

void Zero2Hooks::start_scatter(size_t bucket) {
  const auto same = [&](const ScatterInFlight& flight) { return flight.bucket == bucket; };
  while (in_flight_.size() >= max_in_flight_ || std::any_of(in_flight_.begin(), in_flight_.end(), same))
    in_flight_.pop_front();
  recorder_.record_call(
      {kAxis, comm::Op::reduce_scatter, bucket_sizes_.bucket_counts[bucket], bucket_sizes_.element_bytes});
  in_flight_.push_back({bucket, std::move(buffers_[bucket])});
  buffers_[bucket] = {};
}

void Zero2Hooks::end_pass() {
  scattering_ = false;
}

void PartialSumHooks::ready(DryRunWeight& weight) {
  if (!weight.partial || !sends_gradients) return inner_->ready(weight);
  auto& arrived = arrived_[weight.unit];
  arrived.push_back(&weight);
  if (static_cast<int>(arrived.size()) < num_partial_[weight.unit]) return;
  int64_t count = 0;
  for (const DryRunWeight* one : arrived) count += one->count;
  {
    const CountedBuffer packed(recorder_, MemoryCategory::buffer, count * element_bytes_);
    recorder_.record_call({parallel::MeshAxis::tensor, comm::Op::all_reduce, count, element_bytes_});
    for (DryRunWeight* one : std::exchange(arrived, {})) inner_->ready(*one);
  }
}

Zero3Hooks::Zero3Hooks(DryRunRecorder& recorder, const BucketSizes& bucket_sizes, size_t max_in_flight,
                       bool accumulate_locally, int64_t prefetch, bool keep)
    : Zero2Hooks(recorder, bucket_sizes, max_in_flight, accumulate_locally),
      prefetch_(prefetch),
      keep_(keep),
      gathered_(bucket_sizes.unit_counts.size()) {}

void Zero3Hooks::begin_pass() {
  Zero2Hooks::begin_pass();
  order_known_ = !order_.empty();
  next_use_ = 0;
  current_ = kNoUnit;
  in_backward_ = false;
}

void Zero3Hooks::begin_backward() {
  num_forward_uses_ = next_use_;
  in_backward_ = true;
  if (!keep_) gathered_.assign(gathered_.size(), {});
  current_ = kNoUnit;
}

void Zero3Hooks::end_pass() {
  if (order_known_ && next_use_ < order_.size()) order_.resize(next_use_);
  gathered_.assign(gathered_.size(), {});
  Zero2Hooks::end_pass();
}

void Zero3Hooks::note(size_t unit) {
  if (order_known_ && next_use_ < order_.size() && order_[next_use_] == unit) {
    ++next_use_;
    return;
  }
  order_known_ = false;
  order_.resize(next_use_);
  order_.push_back(unit);
  ++next_use_;
}

void Zero3Hooks::update_upcoming() {
  upcoming_.clear();
  if (!order_known_) return;
  const size_t end = !in_backward_ && !keep_ ? std::min(num_forward_uses_, order_.size()) : order_.size();
  for (size_t i = next_use_; i < end && static_cast<int64_t>(upcoming_.size()) < prefetch_ + 2; ++i)
    if (order_[i] != current_ && std::find(upcoming_.begin(), upcoming_.end(), order_[i]) == upcoming_.end())
      upcoming_.push_back(order_[i]);
}

bool Zero3Hooks::used_soon(size_t unit) const {
  const auto end =
      upcoming_.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(upcoming_.size()), prefetch_);
  return std::find(upcoming_.begin(), end, unit) != end;
}

void Zero3Hooks::gather(size_t unit) {
  if (gathered_[unit]) return;
  gathered_[unit] = std::make_shared<CountedBuffer>(recorder_, MemoryCategory::buffer,
                                                    bucket_sizes_.unit_counts[unit] * bucket_sizes_.element_bytes);
  recorder_.record_call({kAxis, comm::Op::all_gather, bucket_sizes_.unit_counts[unit], bucket_sizes_.element_bytes});
}

void Zero3Hooks::use(DryRunWeight& weight) {
  if (weight.unit == current_) return;
  current_ = weight.unit;
  note(weight.unit);
  update_upcoming();
  if (!keep_)
    for (size_t unit = 0; unit < gathered_.size(); ++unit)
      if (unit != current_ && !used_soon(unit)) gathered_[unit] = {};
  gather(current_);
  for (size_t i = 0; i < upcoming_.size() && static_cast<int64_t>(i) < prefetch_; ++i) gather(upcoming_[i]);
}

}  // namespace esp::plan::dry_run
