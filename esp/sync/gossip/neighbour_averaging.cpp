#include "esp/sync/gossip/neighbour_averaging.h"

#include "esp/kernel/weighted_sum.h"

namespace esp::sync {

using tensor::Tensor;

NeighbourAveraging::PendingExchange NeighbourAveraging::start(const MixingMatrix& mixing, const Tensor& x) {
  PendingExchange pending{&mixing, x, {}, {}};
  std::vector<comm::Call> calls;
  const int here = replicas_.rank();
  comm::Call call;
  call.count = static_cast<size_t>(x.count());
  call.dtype = x.dtype();
  for (const int to : out_neighbours(mixing, here)) {
    call.op = comm::Op::send;
    call.in = x.data();
    call.out = nullptr;
    call.root = to;
    calls.push_back(call);
  }
  for (const NeighbourWeight& one : mixing[static_cast<size_t>(here)]) {
    Tensor& received = pending.received.emplace_back();
    if (one.from == here || one.weight == 0) continue;
    received = tensor::empty(context_, x.shape(), x.dtype(), device::MemoryCategory::buffer);
    call.op = comm::Op::recv;
    call.in = nullptr;
    call.out = received.data();
    call.root = one.from;
    calls.push_back(call);
  }
  if (!calls.empty()) pending.work = replicas_.start_group(calls);
  return pending;
}

void NeighbourAveraging::combine(PendingExchange& pending) {
  replicas_.wait(pending.work, "neighbours");
  std::vector<kernel::WeightedTerm> terms;
  const auto& row = (*pending.mixing)[static_cast<size_t>(replicas_.rank())];
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i].weight > 0)
      terms.push_back({pending.received[i].defined() ? pending.received[i].data() : pending.own.data(), row[i].weight});
  kernel::weighted_sum(pending.own.data(), terms, pending.own.count(), pending.own.dtype(), context_.stream);
  pending = {};
}

}  // namespace esp::sync
