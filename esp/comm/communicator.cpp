#include "esp/comm/communicator.h"

#include "esp/comm/scheduled_communicator.h"

namespace esp::comm {
namespace {

Call make_call(Op op, const void* in, void* out, size_t count, DType dtype) {
  Call call;
  call.op = op;
  call.in = in;
  call.out = out;
  call.count = count;
  call.dtype = dtype;
  return call;
}

}  // namespace

void Communicator::broadcast(void* data, size_t count, DType dtype, int root) {
  Call call = make_call(Op::broadcast, data, data, count, dtype);
  call.root = root;
  run(call);
}

void Communicator::reduce(const void* in, void* out, size_t count, DType dtype, ReduceOp op, int root) {
  Call call = make_call(Op::reduce, in, out, count, dtype);
  call.reduce = op;
  call.root = root;
  run(call);
}

void Communicator::all_reduce(const void* in, void* out, size_t count, DType dtype, ReduceOp op) {
  Call call = make_call(Op::all_reduce, in, out, count, dtype);
  call.reduce = op;
  run(call);
}

void Communicator::reduce_scatter(const void* in, void* out, size_t recv_count, DType dtype, ReduceOp op) {
  Call call = make_call(Op::reduce_scatter, in, out, recv_count * static_cast<size_t>(size()), dtype);
  call.reduce = op;
  run(call);
}

void Communicator::all_gather(const void* in, void* out, size_t send_count, DType dtype) {
  run(make_call(Op::all_gather, in, out, send_count * static_cast<size_t>(size()), dtype));
}

void Communicator::all_to_all(const void* in, void* out, size_t count_per_peer, DType dtype) {
  run(make_call(Op::all_to_all, in, out, count_per_peer * static_cast<size_t>(size()), dtype));
}

void Communicator::gather(const void* in, void* out, size_t send_count, DType dtype, int root) {
  Call call = make_call(Op::gather, in, out, send_count * static_cast<size_t>(size()), dtype);
  call.root = root;
  run(call);
}

void Communicator::scatter(const void* in, void* out, size_t recv_count, DType dtype, int root) {
  Call call = make_call(Op::scatter, in, out, recv_count * static_cast<size_t>(size()), dtype);
  call.root = root;
  run(call);
}

void Communicator::send(const void* data, size_t count, DType dtype, int peer) {
  Call call = make_call(Op::send, data, nullptr, count, dtype);
  call.root = peer;
  run(call);
}

void Communicator::recv(void* data, size_t count, DType dtype, int peer) {
  Call call = make_call(Op::recv, nullptr, data, count, dtype);
  call.root = peer;
  run(call);
}

void Communicator::barrier() {
  run(Call{});
}

void Communicator::signal(int peer) {
  Call call;
  call.op = Op::signal;
  call.root = peer;
  run(call);
}

void Communicator::wait(int peer) {
  Call call;
  call.op = Op::wait;
  call.root = peer;
  run(call);
}

std::unique_ptr<Communicator> make_communicator(const net::World& world, const net::Group& group,
                                                const CommOptions& options) {
  return std::make_unique<ScheduledCommunicator>(world, group, options);
}

}  // namespace esp::comm
