#include "esp/sync/zero/scatter.h"

#include <cstring>

#include "esp/autograd/functions/weights.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/wire.h"

namespace esp::sync {

using device::MemoryCategory;
using tensor::Tensor;

GradientScatter::GradientScatter(nn::ParameterList& parameters, std::vector<Bucket> buckets,
                                 const tensor::Context& context, ShardGroup& group, const Options& options)
    : context_(context),
      group_(group),
      options_(options),
      attached_(buckets.size()),
      landed_(buckets.size()),
      queue_(std::move(buckets), [this](size_t bucket) { launch(bucket); }) {
  int64_t total = 0;
  for (size_t b = 0; b < this->buckets().size(); ++b) total += static_cast<int64_t>(chunk(b).count);
  const Tensor all = tensor::zeros(context, {total}, options.storage, MemoryCategory::gradient);
  int64_t at = 0;
  for (size_t b = 0; b < this->buckets().size(); ++b) {
    const auto count = static_cast<int64_t>(chunk(b).count);
    shards_.push_back(all.slice(at, at + count));
    at += count;
    for (nn::Parameter* p : this->buckets()[b].parameters) {
      p->weight.trained = true;
      p->weight.on_gradient = [this, b] {
        if (!attached_[b].defined()) attach(b);
      };
    }
  }
  ESP_CHECK(at == total && parameters.count() > 0);
}

void GradientScatter::begin_pass(const Pass& pass) {
  armed_ = pass.training && (pass.last || !options_.local);
  if (armed_) queue_.arm();
}

void GradientScatter::attach(size_t b) {
  const Bucket& bucket = buckets()[b];
  attached_[b] = tensor::empty(context_, {bucket.count()}, options_.storage, MemoryCategory::buffer);
  int64_t end = bucket.count();
  for (nn::Parameter* p : bucket.parameters) {  // which stand in reverse
    p->weight.grad = attached_[b].slice(end - p->count(), end).reshape(p->shape);
    p->weight.stale = true;
    end -= p->count();
  }
}

void GradientScatter::launch(size_t b) {
  while (in_flight_.size() >= options_.most_in_flight) {
    land(in_flight_.front());
    in_flight_.pop_front();
  }
  Flight flight{b, {}, {}};
  flight.travelling = to_wire(context_, attached_[b], options_.wire);
  for (nn::Parameter* p : buckets()[b].parameters) p->weight.grad = {};
  attached_[b] = {};
  flight.work = group_.inside().start_reduce_scatter(flight.travelling);
  in_flight_.push_back(std::move(flight));
}

void GradientScatter::land(Flight& flight) {
  group_.inside().wait(flight.work, "gradients");
  const comm::Chunk mine = chunk(flight.bucket);
  const auto begin = static_cast<int64_t>(mine.offset), end = static_cast<int64_t>(mine.offset + mine.count);
  const Tensor sum = flight.travelling.slice(begin, end), shard = shards_[flight.bucket];
  if (group_.has_others()) group_.across().wait(group_.across().start_all_reduce(sum), "gradients across groups");
  if (!landed_[flight.bucket]) {
    kernel::cast(shard.data(), shard.dtype(), sum.data(), sum.dtype(), shard.count(), context_.stream);
  } else if (sum.dtype() == shard.dtype()) {
    kernel::add_to(shard.data(), sum.data(), shard.count(), shard.dtype(), context_.stream);
  } else {
    const Tensor cast = tensor::cast_to(context_, sum, shard.dtype(), MemoryCategory::buffer);
    kernel::add_to(shard.data(), cast.data(), shard.count(), shard.dtype(), context_.stream);
  }
  landed_[flight.bucket] = true;
  flight.travelling = {};
}

void GradientScatter::end_pass() {
  if (!armed_) return;
  armed_ = false;
  queue_.flush([this](nn::Parameter& p) {  // no gradient is a gradient of zero
    p.weight.gradient();
    autograd::clear_if_stale(p.weight, context_.stream);
  });
}

void GradientScatter::finish() {
  for (Flight& flight : in_flight_) land(flight);
  in_flight_.clear();
  landed_.assign(landed_.size(), false);
}

}  // namespace esp::sync
