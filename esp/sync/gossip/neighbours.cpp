#include "esp/sync/gossip/neighbours.h"

#include "esp/kernel/weighted_sum.h"

namespace esp::sync {

using tensor::Tensor;

Neighbours::Flight Neighbours::start(const MixingMatrix& mixing, const Tensor& x) {
  Flight flight{&mixing, x, {}, {}};
  std::vector<comm::Call> calls;
  const int here = replicas_.rank();
  comm::Call call;
  call.count = static_cast<size_t>(x.count());
  call.dtype = x.dtype();
  for (const int to : listeners(mixing, here)) {
    call.op = comm::Op::send;
    call.in = x.data();
    call.out = nullptr;
    call.root = to;
    calls.push_back(call);
  }
  for (const NeighbourWeight& one : mixing[static_cast<size_t>(here)]) {
    Tensor& received = flight.received.emplace_back();
    if (one.from == here || one.weight == 0) continue;
    received = tensor::empty(context_, x.shape(), x.dtype(), device::MemoryCategory::buffer);
    call.op = comm::Op::recv;
    call.in = nullptr;
    call.out = received.data();
    call.root = one.from;
    calls.push_back(call);
  }
  if (!calls.empty()) flight.work = replicas_.start_group(calls);
  return flight;
}

void Neighbours::combine(Flight& flight) {
  replicas_.wait(flight.work, "neighbours");
  std::vector<kernel::WeightedTerm> terms;
  const auto& row = (*flight.mixing)[static_cast<size_t>(replicas_.rank())];
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i].weight > 0)
      terms.push_back({flight.received[i].defined() ? flight.received[i].data() : flight.own.data(), row[i].weight});
  kernel::weighted_sum(flight.own.data(), terms, flight.own.count(), flight.own.dtype(), context_.stream);
  flight = {};
}

}  // namespace esp::sync
