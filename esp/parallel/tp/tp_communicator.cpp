#include "esp/parallel/tp/tp_communicator.h"

#include <algorithm>

#include "esp/base/clock.h"

namespace esp::parallel {

using comm::Op;
using comm::ReduceOp;
using tensor::Tensor;

namespace {

constexpr Duration kMaxAbortWait = std::chrono::seconds(30);

comm::Call call_of(Op op, const Tensor& in, const Tensor& out, ReduceOp reduce, Duration timeout) {
  comm::Call call;
  call.op = op;
  call.in = in.data();
  call.out = out.data();
  call.count = static_cast<size_t>(std::max(in.count(), out.count()));
  call.dtype = in.dtype();
  call.reduce = reduce;
  call.timeout = timeout;
  return call;
}

}  // namespace

TpCommunicator::~TpCommunicator() {
  release_completed();
  if (pending_.empty()) return;
  comm_.abort("this rank left in the middle of a step");
  for (const PendingCollective& pending : pending_) {
    try {
      pending.work.wait(Deadline::after(kMaxAbortWait));
    } catch (const std::exception&) {
      // the original error has already been thrown
    }
  }
}

void TpCommunicator::run(Op op, const Tensor& in, const Tensor& out, ReduceOp reduce) {
  const obs::Span span(trace_, comm::name_of(op).data(), "communication");
  const int64_t begun = now_ns();
  comm_.run(call_of(op, in, out, reduce, timeout_));
  exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
}

Work TpCommunicator::start(Op op, const Tensor& in, const Tensor& out) {
  release_completed();
  pending_.push_back({comm_.start(call_of(op, in, out, ReduceOp::sum, timeout_)), in, out});
  return pending_.back().work;
}

void TpCommunicator::run_all_reduce(const Tensor& x, ReduceOp reduce) {
  run(Op::all_reduce, x, x, reduce);
}
Work TpCommunicator::start_all_reduce(const Tensor& x) {
  return start(Op::all_reduce, x, x);
}
void TpCommunicator::run_all_gather(const Tensor& part, const Tensor& all) {
  run(Op::all_gather, part, all, ReduceOp::sum);
}
Work TpCommunicator::start_all_gather(const Tensor& part, const Tensor& all) {
  return start(Op::all_gather, part, all);
}
void TpCommunicator::run_reduce_scatter(const Tensor& all, const Tensor& part) {
  run(Op::reduce_scatter, all, part, ReduceOp::sum);
}
Work TpCommunicator::start_reduce_scatter(const Tensor& all, const Tensor& part) {
  return start(Op::reduce_scatter, all, part);
}

void TpCommunicator::wait(const Work& work, const char* what) {
  if (!work.done()) {
    const obs::Span span(trace_, what, "communication");
    const int64_t begun = now_ns();
    work.wait(Deadline::after(timeout_));
    exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
  }
  work.wait(Deadline::after_ms(0));  // rethrows the error of the call
  release_completed();
}

// Releases tensors at once, so that Tensor::unique is accurate.
void TpCommunicator::release_completed() {
  std::erase_if(pending_, [](const PendingCollective& pending) { return pending.work.done(); });
}

}  // namespace esp::parallel
