#include "esp/parallel/ep/expert_communicator.h"

#include "esp/base/clock.h"

namespace esp::parallel {

using tensor::Tensor;

namespace {

constexpr Duration kMaxAbortWait = std::chrono::seconds(30);

// Converts row counts to element counts and offsets.
void fill(std::vector<size_t>& counts, std::vector<size_t>& offsets, const std::vector<size_t>& rows, size_t width) {
  size_t at = 0;
  for (size_t count : rows) {
    counts.push_back(count * width);
    offsets.push_back(at);
    at += count * width;
  }
}

}  // namespace

ExpertCommunicator::~ExpertCommunicator() {
  release_completed();
  if (pending_.empty()) return;
  comm_.abort("this rank left in the middle of a step");
  for (const auto& pending : pending_) {
    try {
      pending->work.wait(Deadline::after(kMaxAbortWait));
    } catch (const std::exception&) {
      // the original error has already been thrown
    }
  }
}

Work ExpertCommunicator::start(const Tensor& in, const Tensor& out, const RowCounts& counts) {
  PendingExchange& pending = *pending_.emplace_back(std::make_unique<PendingExchange>());
  pending.in = in;
  pending.out = out;
  const auto width = static_cast<size_t>(in.dim(-1));
  fill(pending.numbers[0], pending.numbers[1], counts.to, width);
  fill(pending.numbers[2], pending.numbers[3], counts.from, width);
  comm::Call call;
  call.op = comm::Op::all_to_all_v;
  call.in = in.data();
  call.out = out.data();
  call.dtype = in.dtype();
  call.send_counts = pending.numbers[0];
  call.send_offsets = pending.numbers[1];
  call.recv_counts = pending.numbers[2];
  call.recv_offsets = pending.numbers[3];
  call.timeout = timeout_;
  return pending.work = comm_.start(call);
}

void ExpertCommunicator::run_all_to_all(const Tensor& in, const Tensor& out) {
  const obs::Span span(trace_, "row counts", "communication");
  const int64_t begun = now_ns();
  comm::Call call;
  call.op = comm::Op::all_to_all;
  call.in = in.data();
  call.out = out.data();
  call.count = static_cast<size_t>(in.count());
  call.dtype = in.dtype();
  call.timeout = timeout_;
  comm_.run(call);
  exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
}

void ExpertCommunicator::wait(const Work& work, const char* what) {
  if (!work.done()) {
    const obs::Span span(trace_, what, "communication");
    const int64_t begun = now_ns();
    work.wait(Deadline::after(timeout_));
    exposed_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
  }
  release_completed();
  work.wait(Deadline::after_ms(0));  // rethrows the error of the call
}

void ExpertCommunicator::release_completed() {
  std::erase_if(pending_, [](const auto& pending) { return pending->work.done(); });
}

}  // namespace esp::parallel
