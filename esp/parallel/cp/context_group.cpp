#include "esp/parallel/cp/context_group.h"

#include <numeric>

#include "esp/base/clock.h"

namespace esp::parallel {
namespace {

constexpr Duration kMaxAbortWait = std::chrono::seconds(30);

std::vector<size_t> offsets_of(const std::vector<size_t>& counts) {
  std::vector<size_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), size_t{0});
  return offsets;
}

}  // namespace

PendingCalls::~PendingCalls() {
  std::erase_if(pending_, [](const Work& work) { return work.done(); });
  if (pending_.empty()) return;
  group_.comm->abort("this rank left in the middle of attention");
  for (const Work& work : pending_) {
    try {
      work.wait(Deadline::after(kMaxAbortWait));
    } catch (const std::exception&) {
      // the original error has already been thrown
    }
  }
}

Work PendingCalls::start_exchange(const void* out, int64_t out_count, void* in, int64_t in_count, DType dtype) {
  const int rank = group_.rank(), size = group_.size();
  comm::Call calls[2];
  size_t num_calls = 0;
  if (out_count > 0) {
    comm::Call& send = calls[num_calls++];
    send.op = comm::Op::send;
    send.in = out;
    send.count = static_cast<size_t>(out_count);
    send.root = (rank + 1) % size;
  }
  if (in_count > 0) {
    comm::Call& receive = calls[num_calls++];
    receive.op = comm::Op::recv;
    receive.out = in;
    receive.count = static_cast<size_t>(in_count);
    receive.root = (rank + size - 1) % size;
  }
  for (comm::Call& call : calls) {
    call.dtype = dtype;
    call.timeout = group_.timeout;
  }
  std::erase_if(pending_, [](const Work& work) { return work.done(); });
  return pending_.emplace_back(group_.comm->start_group(std::span(calls, num_calls)));
}

void PendingCalls::run_all_to_all(const void* in, const std::vector<size_t>& send_counts, void* out,
                                  const std::vector<size_t>& recv_counts, DType dtype) {
  const std::vector<size_t> send_offsets = offsets_of(send_counts), recv_offsets = offsets_of(recv_counts);
  comm::Call call;
  call.op = comm::Op::all_to_all_v;
  call.in = in;
  call.out = out;
  call.dtype = dtype;
  call.timeout = group_.timeout;
  call.send_counts = send_counts;
  call.send_offsets = send_offsets;
  call.recv_counts = recv_counts;
  call.recv_offsets = recv_offsets;
  obs::Span span(group_.trace, "all_to_all", "communication");
  const int64_t begun = now_ns();
  group_.comm->run(call);
  if (group_.waited_ms) *group_.waited_ms += static_cast<double>(now_ns() - begun) * 1e-6;
}

void PendingCalls::wait(const Work& work, const char* what) {
  if (work.done()) {
    work.wait(Deadline::after_ms(0));  // rethrows the error of the call
    return;
  }
  obs::Span span(group_.trace, what, "communication");
  const int64_t begun = now_ns();
  work.wait(Deadline::after(group_.timeout));
  if (group_.waited_ms) *group_.waited_ms += static_cast<double>(now_ns() - begun) * 1e-6;
}

}  // namespace esp::parallel
