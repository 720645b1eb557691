#include "esp/plan/ghost/holders.h"

#include <algorithm>

namespace esp::plan::ghost {

ScatteredGradients::ScatteredGradients(Account& account, const Division& division, size_t most_in_flight, bool local)
    : account_(account),
      division_(division),
      most_in_flight_(most_in_flight),
      local_(local),
      attached_(division.bucket_counts.size()),
      missing_(division.bucket_counts.size()) {}

void ScatteredGradients::begin_pass() {
  armed_ = last_pass || !local_;
  next_ = 0;
  missing_ = division_.bucket_weights;
}

void ScatteredGradients::gradient(Weight& weight) {
  Tensor& bucket = attached_[weight.bucket];
  if (!bucket)
    bucket = std::make_shared<Piece>(account_, MemoryCategory::buffer,
                                     division_.bucket_counts[weight.bucket] * division_.element);
}

void ScatteredGradients::ready(Weight& weight) {
  if (!armed_) return;
  --missing_[weight.bucket];
  while (next_ < missing_.size() && missing_[next_] == 0) launch(next_++);
}

void ScatteredGradients::launch(size_t bucket) {
  const auto same = [&](const Flight& flight) { return flight.bucket == bucket; };
  while (in_flight_.size() >= most_in_flight_ || std::any_of(in_flight_.begin(), in_flight_.end(), same))
    in_flight_.pop_front();
  account_.note({kAxis, comm::Op::reduce_scatter, division_.bucket_counts[bucket], division_.element});
  in_flight_.push_back({bucket, std::move(attached_[bucket])});
  attached_[bucket] = {};
}

void ScatteredGradients::end_pass() {
  armed_ = false;
}

void SummedParts::ready(Weight& weight) {
  if (!weight.partial || !leaving) return of_->ready(weight);
  auto& arrived = arrived_[weight.unit];
  arrived.push_back(&weight);
  if (static_cast<int>(arrived.size()) < parts_[weight.unit]) return;
  int64_t count = 0;
  for (const Weight* one : arrived) count += one->count;
  {
    const Piece packed(account_, MemoryCategory::buffer, count * element_);
    account_.note({parallel::MeshAxis::tensor, comm::Op::all_reduce, count, element_});
    for (Weight* one : std::exchange(arrived, {})) of_->ready(*one);
  }
}

WindowedValues::WindowedValues(Account& account, const Division& division, size_t most_in_flight, bool local,
                               int64_t ahead, bool keep)
    : ScatteredGradients(account, division, most_in_flight, local),
      ahead_(ahead),
      keep_(keep),
      whole_(division.unit_counts.size()) {}

void WindowedValues::begin_pass() {
  ScatteredGradients::begin_pass();
  known_ = !order_.empty();
  next_use_ = 0;
  current_ = kNobody;
  in_backward_ = false;
}

void WindowedValues::begin_backward() {
  turn_ = next_use_;
  in_backward_ = true;
  if (!keep_) whole_.assign(whole_.size(), {});
  current_ = kNobody;
}

void WindowedValues::end_pass() {
  if (known_ && next_use_ < order_.size()) order_.resize(next_use_);
  whole_.assign(whole_.size(), {});
  ScatteredGradients::end_pass();
}

void WindowedValues::note(size_t unit) {
  if (known_ && next_use_ < order_.size() && order_[next_use_] == unit) {
    ++next_use_;
    return;
  }
  known_ = false;
  order_.resize(next_use_);
  order_.push_back(unit);
  ++next_use_;
}

void WindowedValues::look_ahead() {
  soon_.clear();
  if (!known_) return;
  const size_t end = !in_backward_ && !keep_ ? std::min(turn_, order_.size()) : order_.size();
  for (size_t i = next_use_; i < end && static_cast<int64_t>(soon_.size()) < ahead_ + 2; ++i)
    if (order_[i] != current_ && std::find(soon_.begin(), soon_.end(), order_[i]) == soon_.end())
      soon_.push_back(order_[i]);
}

bool WindowedValues::wanted_soon(size_t unit) const {
  const auto end = soon_.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(soon_.size()), ahead_);
  return std::find(soon_.begin(), end, unit) != end;
}

void WindowedValues::fetch(size_t unit) {
  if (whole_[unit]) return;
  whole_[unit] =
      std::make_shared<Piece>(account_, MemoryCategory::buffer, division_.unit_counts[unit] * division_.element);
  account_.note({kAxis, comm::Op::all_gather, division_.unit_counts[unit], division_.element});
}

void WindowedValues::use(Weight& weight) {
  if (weight.unit == current_) return;
  current_ = weight.unit;
  note(weight.unit);
  look_ahead();
  if (!keep_)
    for (size_t unit = 0; unit < whole_.size(); ++unit)
      if (unit != current_ && !wanted_soon(unit)) whole_[unit] = {};
  fetch(current_);
  for (size_t i = 0; i < soon_.size() && static_cast<int64_t>(i) < ahead_; ++i) fetch(soon_[i]);
}

}  // namespace esp::plan::ghost
