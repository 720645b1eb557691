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
    // A destructor must not throw; the next wait on the communicator reports the error.
  }
}

void SecondaryShard::keep(const Tensor& whole) {
  ESP_CHECK(whole.count() == count_ && whole.dtype() == shard_.dtype(),
            "secondary shard: got {} values of type {}; expected {} of type {} (the whole unit)", whole.count(),
            name_of(whole.dtype()), count_, name_of(shard_.dtype()));
  const void* from = kernel::at(whole.data(), static_cast<int64_t>(own_.offset), whole.dtype());
  kernel::cast(shard_.data(), shard_.dtype(), from, whole.dtype(), shard_.count(), context_.stream);
  kept_ = true;
}

void SecondaryShard::start(const Tensor& whole) {
  ESP_CHECK(kept_, "secondary shard: nothing is stored. Call keep first");
  ESP_CHECK(!whole_.defined(), "secondary shard: start was called while a gather of this unit is in flight");
  ESP_CHECK(whole.count() == count_ && whole.dtype() == shard_.dtype(),
            "secondary shard: got an output of {} values of type {}; expected {} of type {} (the whole unit)",
            whole.count(), name_of(whole.dtype()), count_, name_of(shard_.dtype()));
  whole_ = whole;
  if (!nodes_.intra_node) {
    kernel::cast(whole.data(), whole.dtype(), shard_.data(), shard_.dtype(), count_, context_.stream);
    return;
  }
  comm::Call call;
  call.op = comm::Op::all_gather;
  call.in = shard_.data();
  call.out = whole.data();
  call.count = static_cast<size_t>(count_);
  call.dtype = whole.dtype();
  work_ = nodes_.intra_node->start(call);
}

void SecondaryShard::finish(Deadline deadline) {
  ESP_CHECK(whole_.defined(), "secondary shard: no gather of this unit is in flight. Call start first");
  const auto begun = Clock::now();
  work_.wait(deadline);
  waited_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  work_ = {};
  whole_ = {};
}

void SecondaryShard::gather_in_node(const Tensor& whole, Deadline deadline) {
  start(whole);
  finish(deadline);
}

}  // namespace esp::sync
