// Point-to-point messages and signals.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/scheduled_communicator.h"

namespace esp::comm {
namespace {

// The message as its sender describes it: a send to the receiver. Only fields that both ends know are set, so both ends
// compute the same tag.
Call sender_view(const Call& call, int me) {
  Call sent;
  sent.op = Op::send;
  sent.count = call.count;
  sent.dtype = call.dtype;
  sent.root = call.op == Op::send ? call.root : me;
  return sent;
}

}  // namespace

// Runs independent messages, all in flight at once. They have sequence numbers per peer and direction.
void ScheduledCommunicator::run_point_to_point(std::span<const Call> calls) {
  messages_.clear();
  for (const Call& call : calls) {
    auto peer = static_cast<size_t>(call.root);
    uint64_t number = call.op == Op::send ? ++sent_[peer] : ++received_[peer];
    Executor::PeerMessage& message = messages_.emplace_back();
    message.sends = call.op == Op::send;
    message.transfer.peer = call.root;
    // the cast is safe, because a send only reads the data
    message.transfer.data =
        message.sends ? static_cast<std::byte*>(const_cast<void*>(call.in)) : static_cast<std::byte*>(call.out);
    message.transfer.bytes = call.count * size_of(call.dtype);
    message.transfer.tag = tag_of(sender_view(call, rank()), number, kAutoAlgorithm);
  }
  publish_position(calls.front(), messages_.front().transfer.tag.sequence);
  net::Traffic before = transport_->total();
  auto outcome = executor_->exchange(messages_, *deadline_);
  const Call* concerned = &calls.front();
  int peer = outcome == Executor::RunStatus::mismatched ? executor_->mismatch().peer : executor_->missing_peer();
  for (const Call& call : calls)
    if (call.root == peer && (call.op == Op::recv || concerned->root != peer)) concerned = &call;
  check_run_status(outcome, *concerned);
  for (const Call& call : calls) counter(call.op, kAutoAlgorithm).calls++;
  CallCounter& c = counter(calls.front().op, kAutoAlgorithm);
  c.calls--;  // count_traffic increments it again
  count_traffic(c, before);
  c.ns += ns_since_begin();
}

std::string ScheduledCommunicator::signal_key(int from, int to, uint64_t number) const {
  return fmt::format("signal/{:x}/{}/{}/{}", group_.id, from, to, number);
}

void ScheduledCommunicator::run_signal(const Call& call) {
  uint64_t number = ++signalled_[static_cast<size_t>(call.root)];
  record_begin(call, number, kAutoAlgorithm);
  world_.store->set(signal_key(rank(), call.root, number), "");
  counter(call.op, kAutoAlgorithm).calls++;
}

void ScheduledCommunicator::run_wait(const Call& call) {
  uint64_t number = ++waited_[static_cast<size_t>(call.root)];
  publish_position(call, number);
  std::string key = signal_key(call.root, rank(), number);
  try {
    net::wait_for_key(world_, group_, key, group_.members[static_cast<size_t>(call.root)], *deadline_);
  } catch (const CommError& error) {
    if (error.kind() == CommError::Kind::timeout) throw_timeout(call, call.root);
    throw;
  }
  world_.store->erase(key);
  counter(call.op, kAutoAlgorithm).calls++;
}

}  // namespace esp::comm
