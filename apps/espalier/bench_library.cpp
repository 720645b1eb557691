#include "apps/espalier/bench_library.h"

#include <fmt/format.h>

#include "esp/kernel/reduce.h"

namespace esp::app {

void EspalierLibrary::prepare(const bench::Request& request, const bench::Layout& layout, void* in, void* out) {
  algorithm_ = request.algo;
  call_ = {};
  call_.in = in;
  call_.out = out;
  call_.count = layout.count;
  call_.dtype = parse_dtype(request.dtype);
  call_.reduce = kernel::parse_reduce_op(request.reduce);
  call_.root = request.root;
  call_.algorithm = algorithm_;
  exchange_ = request.op == "sendrecv";
  if (exchange_) {
    send_ = receive_ = call_;
    send_.op = comm::Op::send;
    send_.algorithm = receive_.algorithm = "auto";
    send_.root = (rank() + 1) % size();
    receive_.op = comm::Op::recv;
    receive_.root = (rank() + size() - 1) % size();
  } else {
    call_.op = comm::parse_op(request.op);
  }
  before_ = comm_.stats();
}

void EspalierLibrary::call() {
  if (!exchange_) return comm_.run(call_);
  const comm::Call both[] = {receive_, send_};
  comm_.start_group(both).wait(Deadline::after(std::chrono::seconds(60)));
}

void* EspalierLibrary::allocate_registered(size_t bytes) {
  std::shared_ptr<void> memory = comm_.allocate(bytes);
  registered_[memory.get()] = memory;
  return memory.get();
}

std::string EspalierLibrary::report() {
  std::string algorithm = "none", transport = "none";
  double calls = 0, sent = 0, rounds = 0;
  for (const comm::CallStats& row : comm_.stats()) {
    if (row.op == comm::Op::barrier) continue;
    comm::CallStats now = row;
    for (const comm::CallStats& old : before_)
      if (old.op == row.op && old.algorithm == row.algorithm && old.transport == row.transport)
        now.calls -= old.calls, now.bytes_sent -= old.bytes_sent, now.rounds -= old.rounds;
    if (now.calls == 0) continue;
    algorithm = row.algorithm, transport = row.transport;
    calls += static_cast<double>(now.calls);
    sent += static_cast<double>(now.bytes_sent);
    rounds += static_cast<double>(now.rounds);
  }
  if (exchange_) calls /= 2;  // one exchange is a send and a receive
  if (calls == 0) calls = 1;
  return fmt::format("algo={} transport={} sent={:.0f} rounds={:.0f}", algorithm, transport, sent / calls,
                     rounds / calls);
}

}  // namespace esp::app
