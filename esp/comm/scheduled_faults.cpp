// Rank failure handling of a communicator: diagnosis, abort of the peers, and the error that every later call repeats.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/diagnosis.h"
#include "esp/comm/scheduled_communicator.h"
#include "esp/net/failure_detector.h"

namespace esp::comm {
namespace {

// Time that a rank has to report its call position before it counts as stopped. On an overloaded machine an answer may
// take seconds, and a slow rank must not be reported as stopped. The query ends early if all ranks answer.
constexpr auto kQueryTimeout = std::chrono::seconds(3);
// The same time for queries before the deadline of the call. It is short, because a rank that is silent now may answer
// the next query.
constexpr auto kProgressQueryTimeout = std::chrono::milliseconds(100);

// True if no member can finish this call and leave before this rank enters it. In the other calls a member can, for
// example a root that only sends, or a rank with an empty chunk.
bool needs_all_ranks(const Call& call, int size) {
  switch (call.op) {
    case Op::barrier:
      return true;
    case Op::all_reduce:
      return call.count > 0;
    case Op::reduce_scatter:
    case Op::all_gather:
    case Op::all_to_all:
      return call.count >= static_cast<size_t>(size);
    default:
      return false;
  }
}

}  // namespace

void ScheduledCommunicator::check_peers(const Call& starting) {
  uint32_t epoch = world_.peer_status->epoch();
  if (epoch == epoch_) return;
  if (!needs_all_ranks(starting, size())) return world_.peer_status->check(group_.id, group_.members);
  world_.peer_status->check_present(group_.id, group_.members);
  epoch_ = epoch;
}

void ScheduledCommunicator::check_run_status(Executor::RunStatus outcome, const Call& call) {
  if (outcome == Executor::RunStatus::done) return;
  if (outcome == Executor::RunStatus::expired) throw_timeout(call, executor_->missing_peer());
  bool one_peer = call.op == Op::send || call.op == Op::recv;
  throw mismatch_error(executor_->mismatch(), group_, one_peer ? describe(call) : describe(tag_));
}

// Called when no message has progressed for a while. Ranks in different calls may wait for each other without
// exchanging a message. Their call positions show the mismatch long before the deadline.
void ScheduledCommunicator::check_positions() {
  net::Tag mine = positions_.mine().read().entered;
  std::optional<Op> op = op_of(mine);
  if (!op || !is_collective(*op)) return;
  std::vector<int> awaited;
  if (*op == Op::all_to_all_v)
    for (const Executor::PeerMessage& message : messages_)
      if (!message.sends && message.transfer.state == net::Transfer::State::posted && message.transfer.moved == 0)
        awaited.push_back(message.transfer.peer);
  auto positions = positions_.query(Deadline::after(kProgressQueryTimeout));
  if (auto found = difference_error(mine, group_, positions, awaited)) throw *found;
}

void ScheduledCommunicator::throw_timeout(const Call& call, int missing_peer) {
  if (transport_) transport_->abandon();
  // During the wait or the query another rank may have reported the cause; `check` throws it.
  world_.peer_status->check(group_.id, group_.members);
  auto positions = positions_.query(Deadline::after(kQueryTimeout));
  world_.peer_status->check(group_.id, group_.members);
  net::Tag mine = positions_.mine().read().entered;
  bool one_peer = call.op == Op::send || call.op == Op::recv || call.op == Op::wait;
  throw deadline_error(mine, timeout_of(call), group_, positions, missing_peer, one_peer);
}

void ScheduledCommunicator::abort_group(const CommError& cause) {
  world_.peer_status->abort(group_.id, cause);
  if (world_.failure_detector) world_.failure_detector->abort(group_.id, group_.members, cause);
}

void ScheduledCommunicator::fail(const CommError& cause) {
  if (transport_) transport_->abandon();
  CommError first = cause;
  bool notify_peers = true;
  try {
    world_.peer_status->check(group_.id, group_.members);
  } catch (const CommError& known) {
    first = known;
    // After an abort, all ranks know the error already. A lost connection may be known to this rank only: a connection
    // can break between two running ranks, and the other ranks would then wait until their deadlines.
    notify_peers = known.kind() == CommError::Kind::lost;
  }
  dead_ = first;
  record_end(obs::FlightState::failed);
  if (notify_peers) abort_group(first);
  throw *dead_;
}

void ScheduledCommunicator::fail_locally(const std::exception& error) {
  if (transport_) transport_->abandon();
  int me = world_.rank;
  dead_ = CommError(CommError::Kind::aborted, me, fmt::format("rank {} failed: {}", me, error.what()));
  record_end(obs::FlightState::failed);
  abort_group(*dead_);
}

}  // namespace esp::comm
