#include "esp/sync/tier/tiered_gather.h"

#include "esp/device/is_cuda.h"

namespace esp::sync {

using tensor::Tensor;

TieredGather::TieredGather(TimedCommunicator& ranks, const tensor::Context& context, ValueTier& values,
                           device::HostLink& link, size_t num_units, Duration timeout)
    : ranks_(ranks),
      context_(context),
      values_(values),
      link_(link),
      timeout_(timeout),
      units_(num_units),
      executor_("esp-lift") {}

void TieredGather::start_upload(size_t unit, const Tensor& into) {
  UnitStages& unit_stages = units_[unit];
  unit_stages.uploaded = true;
  unit_stages.upload = Work::pending();
  values_.prefetch(unit);
  // The caller keeps the tensor: if the executor dropped the last handle, memory would be freed at an unpredictable
  // time. Earlier GPU kernels may still read this memory; the upload waits for them.
  std::shared_ptr<device::GpuEvent> left;
  if (device::is_cuda(context_.stream)) {
    left = std::make_shared<device::GpuEvent>(context_.stream.device);
    left->record(context_.stream);
  }
  executor_.post([this, unit, to = into.data(), bytes = into.bytes(), &unit_stages, left, work = unit_stages.upload] {
    try {
      const int64_t begun = now_ns();
      const std::byte* const from = values_.fetch(unit);
      if (bytes > 0)
        link_.up(to, from, bytes, {.device = context_.stream.device, .pool = nullptr, .queue = nullptr}, left.get());
      values_.release(unit);
      unit_stages.fetch_ms = static_cast<double>(now_ns() - begun) * 1e-6;
      work.complete();
    } catch (...) {
      work.fail(std::current_exception());
    }
  });
}

void TieredGather::upload_shard(size_t unit) {
  UnitStages& unit_stages = units_[unit];
  if (unit_stages.uploaded) return;
  const Tensor shape = values_.shard(unit);
  unit_stages.shard = tensor::empty(context_, shape.shape(), shape.dtype(), device::MemoryCategory::buffer);
  start_upload(unit, unit_stages.shard);
}

void TieredGather::wait_for_upload(UnitStages& unit_stages) {
  unit_stages.uploaded = false;
  const Work upload = std::exchange(unit_stages.upload, {});
  if (upload.done()) return upload.wait(Deadline::after_ms(0));
  const int64_t begun = now_ns();
  upload.wait(Deadline::after(timeout_));
  exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
}

// All ranks start gathers in the same order, so a gather whose shard has not arrived cannot be postponed: this call
// waits for the shard. The window's hints make the wait rare.
void TieredGather::start(size_t unit, const Tensor& whole) {
  if (ranks_.size() == 1) return start_upload(unit, whole);
  UnitStages& unit_stages = units_[unit];
  upload_shard(unit);
  wait_for_upload(unit_stages);
  unit_stages.gathering = ranks_.start_all_gather(unit_stages.shard, whole);
}

void TieredGather::finish(size_t unit, const Tensor&) {
  UnitStages& unit_stages = units_[unit];
  if (ranks_.size() == 1) return wait_for_upload(unit_stages);
  ranks_.wait(std::exchange(unit_stages.gathering, {}), "values");
  unit_stages.shard = {};
}

void TieredGather::hint(size_t unit, int distance) {
  if (distance == 1 && ranks_.size() > 1) return upload_shard(unit);
  values_.prefetch(unit);
}

void TieredGather::values_changed() {
  for (UnitStages& unit_stages : units_) {
    if (!unit_stages.uploaded) continue;
    wait_for_upload(unit_stages);
    unit_stages.shard = {};
  }
  values_.flush();
}

}  // namespace esp::sync
