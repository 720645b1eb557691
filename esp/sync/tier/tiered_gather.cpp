#include "esp/sync/tier/tiered_gather.h"

#include "esp/device/on_cuda.h"

namespace esp::sync {

using tensor::Tensor;

TieredGather::TieredGather(Ranks& ranks, const tensor::Context& context, ValueTier& values, device::HostLink& link,
                           size_t num_units, Duration timeout)
    : ranks_(ranks),
      context_(context),
      values_(values),
      link_(link),
      timeout_(timeout),
      legs_(num_units),
      lane_("esp-lift") {}

void TieredGather::lift(size_t unit, const Tensor& into) {
  Leg& leg = legs_[unit];
  leg.lifted = true;
  leg.lifting = Work::pending();
  values_.expect(unit);
  // The tensor stays with the caller: were the lane to drop the last handle, memory would come back at any moment.
  // Whoever had that memory before may still be reading it on a GPU.
  std::shared_ptr<device::GpuEvent> left;
  if (device::on_cuda(context_.stream)) {
    left = std::make_shared<device::GpuEvent>(context_.stream.device);
    left->record(context_.stream);
  }
  lane_.post([this, unit, to = into.data(), bytes = into.bytes(), &leg, left, work = leg.lifting] {
    try {
      const int64_t begun = now_ns();
      const std::byte* const from = values_.bring(unit);
      if (bytes > 0)
        link_.up(to, from, bytes, {.device = context_.stream.device, .pool = nullptr, .queue = nullptr}, left.get());
      values_.release(unit);
      leg.fetch_ms = static_cast<double>(now_ns() - begun) * 1e-6;
      work.complete();
    } catch (...) {
      work.fail(std::current_exception());
    }
  });
}

void TieredGather::lift_shard(size_t unit) {
  Leg& leg = legs_[unit];
  if (leg.lifted) return;
  const Tensor shape = values_.shard(unit);
  leg.shard = tensor::empty(context_, shape.shape(), shape.dtype(), device::MemoryCategory::buffer);
  lift(unit, leg.shard);
}

void TieredGather::wait_for_lift(Leg& leg) {
  leg.lifted = false;
  const Work lifting = std::exchange(leg.lifting, {});
  if (lifting.done()) return lifting.wait(Deadline::after_ms(0));
  const int64_t begun = now_ns();
  lifting.wait(Deadline::after(timeout_));
  exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
}

// Ranks begin their gathers in one order, so a gather cannot be left for when its shard is there: this waits for it.
// The window's hints see to it that it usually is.
void TieredGather::start(size_t unit, const Tensor& whole) {
  if (ranks_.size() == 1) return lift(unit, whole);
  Leg& leg = legs_[unit];
  lift_shard(unit);
  wait_for_lift(leg);
  leg.gathering = ranks_.start_all_gather(leg.shard, whole);
}

void TieredGather::finish(size_t unit, const Tensor&) {
  Leg& leg = legs_[unit];
  if (ranks_.size() == 1) return wait_for_lift(leg);
  ranks_.wait(std::exchange(leg.gathering, {}), "values");
  leg.shard = {};
}

void TieredGather::hint(size_t unit, int distance) {
  if (distance == 1 && ranks_.size() > 1) return lift_shard(unit);
  values_.expect(unit);
}

void TieredGather::values_changed() {
  for (Leg& leg : legs_) {
    if (!leg.lifted) continue;
    wait_for_lift(leg);
    leg.shard = {};
  }
  values_.settle();
}

}  // namespace esp::sync
