#include "esp/sync/timed_communicator.h"

#include "esp/base/clock.h"
#include "esp/device/gpu.h"

namespace esp::sync {
namespace {

constexpr Duration kMaxAbortWait = std::chrono::seconds(30);

}  // namespace

using tensor::Tensor;

TimedCommunicator::~TimedCommunicator() {
  std::erase_if(started_, [](const Work& work) { return work.done(); });
  if (started_.empty()) return;
  comm_->abort("this rank stopped in the middle of a step");
  for (const Work& work : started_) {
    try {
      work.wait(Deadline::after(kMaxAbortWait));
    } catch (const std::exception&) {
      // A destructor must not throw; the error that aborted this rank was reported already.
    }
  }
}

Work TimedCommunicator::start(comm::Op op, const void* in, void* out, const Tensor& all) {
  comm::Call call;
  call.op = op;
  call.in = in;
  call.out = out;
  call.count = static_cast<size_t>(all.count());
  call.dtype = all.dtype();
  if (options_.ordered && op != comm::Op::all_gather) call.algorithm = "direct";
  std::erase_if(started_, [](const Work& work) { return work.done(); });
  return started_.emplace_back(comm_->start(call));
}

Work TimedCommunicator::start_all_reduce(const Tensor& all) {
  return comm_ ? start(comm::Op::all_reduce, all.data(), all.data(), all) : Work();
}

Work TimedCommunicator::start_reduce_scatter(const Tensor& all) {
  if (!comm_) return {};
  return start(comm::Op::reduce_scatter, all.data(),
               all.as<std::byte>() + chunk(all.count()).offset * size_of(all.dtype()), all);
}

Work TimedCommunicator::start_all_gather(const Tensor& all) {
  if (!comm_) return {};
  return start(comm::Op::all_gather, all.as<std::byte>() + chunk(all.count()).offset * size_of(all.dtype()), all.data(),
               all);
}

Work TimedCommunicator::start_all_gather(const Tensor& chunk, const Tensor& all) {
  if (comm_) return start(comm::Op::all_gather, chunk.data(), all.data(), all);
  device::transfer(all.data(), chunk.data(), all.bytes());
  return {};
}

Work TimedCommunicator::start_group(std::span<const comm::Call> calls) {
  std::erase_if(started_, [](const Work& work) { return work.done(); });
  return started_.emplace_back(comm_->start_group(calls));
}

void TimedCommunicator::wait(const Work& work, const char* what) {
  if (work.done()) {
    work.wait(Deadline::after_ms(0));  // the work is done, so this wait only rethrows its error
    return;
  }
  obs::Span span(options_.trace, what, "communication");
  const int64_t begun = now_ns();
  work.wait(Deadline::after(options_.timeout));
  exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
}

}  // namespace esp::sync
