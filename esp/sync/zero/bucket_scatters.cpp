#include "esp/sync/zero/bucket_scatters.h"

#include "esp/sync/wire.h"

namespace esp::sync {

using tensor::Tensor;

void PlainScatter::start(size_t bucket, const Tensor& all) {
  PendingScatter& pending = pending_[bucket];
  pending.wire_data = group_.is_single_rank() ? all : to_wire(context_, all, wire_);
  pending.work = group_.intra_group().start_reduce_scatter(pending.wire_data);
}

Tensor PlainScatter::finish(size_t bucket) {
  PendingScatter& pending = pending_[bucket];
  group_.intra_group().wait(pending.work, "gradients");
  const comm::Chunk mine = group_.intra_group().chunk(pending.wire_data.count());
  const Tensor sum =
      pending.wire_data.slice(static_cast<int64_t>(mine.offset), static_cast<int64_t>(mine.offset + mine.count));
  pending = {};
  if (group_.has_replicas())
    group_.inter_group().wait(group_.inter_group().start_all_reduce(sum), "gradients across groups");
  return sum;
}

NodeScatter::NodeScatter(const NodeGrid& nodes, const tensor::Context& context, const std::vector<int64_t>& counts,
                         DType storage, const Encoding& encoding, Duration timeout)
    : context_(context), storage_(storage), timeout_(timeout) {
  for (int64_t count : counts) {
    scatters_.emplace_back(nodes, context, count, storage, encoding);
    chunk_counts_.push_back(
        static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(count), nodes.size(), nodes.rank()).count));
  }
}

void NodeScatter::start(size_t bucket, const Tensor& all) {
  scatters_[bucket].start(all);
}

Tensor NodeScatter::finish(size_t bucket) {
  const Tensor sum = tensor::empty(context_, {chunk_counts_[bucket]}, storage_, device::MemoryCategory::buffer);
  scatters_[bucket].finish(sum, Deadline::after(timeout_));
  return sum;
}

double NodeScatter::exposed_ms() const {
  double sum = 0;
  for (const QuantisedScatter& scatter : scatters_) sum += scatter.waited_ms();
  return sum;
}

}  // namespace esp::sync
