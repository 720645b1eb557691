#include "esp/sync/quantised/secondary_shard.h"

#include "esp/kernel/elementwise.h"
#include "esp/kernel/floating.h"

namespace esp::sync {

using tensor::Tensor;

SecondaryShard::SecondaryShard(const NodeGrid& nodes, const tensor::Context& context, int64_t count, DType storage)
    : nodes_(nodes),
      context_(context),
      count_(count),
      own_(comm::chunk_of(static_cast<size_t>(count), nodes.ranks_per_node(), nodes.local())),
      shard_(tensor::empty(context, {static_cast<int64_t>(own_.count)}, storage, device::MemoryCategory::parameter)) {}

SecondaryShard::~SecondaryShard() {
  try {
    work_.wait(Deadline::after(std::chrono::hours(24)));
  } catch (...) {
    // The next wait on the communicator reports the error.
  }
}

void SecondaryShard::keep(const Tensor& whole) {
  ESP_CHECK(whole.count() == count_ && whole.dtype() == shard_.dtype(), "{} {} for a unit of {} {}", whole.count(),
            name_of(whole.dtype()), count_, name_of(shard_.dtype()));
  const void* from = kernel::at(whole.data(), static_cast<int64_t>(own_.offset), whole.dtype());
  kernel::cast(shard_.data(), shard_.dtype(), from, whole.dtype(), shard_.count(), context_.stream);
  kept_ = true;
}

void SecondaryShard::start(const Tensor& whole) {
  ESP_CHECK(kept_, "no secondary shard is stored");
  ESP_CHECK(!whole_.defined(), "a gather of this unit is in flight");
  ESP_CHECK(whole.count() == count_ && whole.dtype() == shard_.dtype(), "{} {} for a unit of {} {}", whole.count(),
            name_of(whole.dtype()), count_, name_of(shard_.dtype()));
  whole_ = whole;
  if (!nodes_.inside) {
    kernel::cast(whole.data(), whole.dtype(), shard_.data(), shard_.dtype(), count_, context_.stream);
    return;
  }
  comm::Call call;
  call.op = comm::Op::all_gather;
  call.in = shard_.data();
  call.out = whole.data();
  call.count = static_cast<size_t>(count_);
  call.dtype = whole.dtype();
  work_ = nodes_.inside->start(call);
}

void SecondaryShard::finish(Deadline deadline) {
  ESP_CHECK(whole_.defined(), "no gather of this unit is in flight");
  const auto begun = Clock::now();
  work_.wait(deadline);
  waited_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  work_ = {};
  whole_ = {};
}

void SecondaryShard::gather_inside(const Tensor& whole, Deadline deadline) {
  start(whole);
  finish(deadline);
}

}  // namespace esp::sync
