// Failure handling of a communicator: diagnosis, abort of the peers, and the error every later call repeats.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/diagnosis.h"
#include "esp/comm/scheduled_communicator.h"
#include "esp/net/watch.h"

namespace esp::comm {
namespace {

// Time a rank has to report its call position before it counts as stopped. The full time is used only if a rank is
// silent: an overloaded machine may take seconds, and a slow rank must not be reported as stopped.
constexpr auto kAnswer = std::chrono::seconds(3);
// The same while there is time left: a rank that is silent now may answer the next query.
constexpr auto kGlance = std::chrono::milliseconds(100);

// Whether no member can have finished this call and left before this rank entered it. A root that only sends can, and
// so can a rank with an empty part.
bool needs_everyone(const Call& call, int size) {
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
  uint32_t epoch = world_.fate->epoch();
  if (epoch == epoch_) return;
  if (!needs_everyone(starting, size())) return world_.fate->check(group_.id, group_.members);
  world_.fate->check_present(group_.id, group_.members);
  epoch_ = epoch;
}

void ScheduledCommunicator::settle(Executor::RunStatus outcome, const Call& call) {
  if (outcome == Executor::RunStatus::done) return;
  if (outcome == Executor::RunStatus::expired) expire(call, executor_->waits_for());
  bool one_peer = call.op == Op::send || call.op == Op::recv;
  throw mismatch_error(executor_->mismatch(), group_, one_peer ? describe(call) : describe(tag_));
}

// No progress for a while. Ranks that wait for each other in different calls may never exchange a message; their call
// positions reveal the mismatch long before the deadline.
void ScheduledCommunicator::check_positions() {
  net::Tag mine = positions_.mine().read().entered;
  std::optional<Op> op = op_of(mine);
  if (!op || !is_collective(*op)) return;
  std::vector<int> awaited;
  if (*op == Op::all_to_all_v)
    for (const Executor::PeerMessage& message : messages_)
      if (!message.sends && message.transfer.state == net::Transfer::State::posted && message.transfer.moved == 0)
        awaited.push_back(message.transfer.peer);
  auto positions = positions_.ask(Deadline::after(kGlance));
  if (auto found = difference_error(mine, group_, positions, awaited)) throw *found;
}

void ScheduledCommunicator::expire(const Call& call, int waits_for) {
  if (transport_) transport_->abandon();
  // Another rank may have found the cause during the wait or the query.
  world_.fate->check(group_.id, group_.members);
  auto positions = positions_.ask(Deadline::after(kAnswer));
  world_.fate->check(group_.id, group_.members);
  net::Tag mine = positions_.mine().read().entered;
  bool one_peer = call.op == Op::send || call.op == Op::recv || call.op == Op::wait;
  throw deadline_error(mine, timeout_of(call), group_, positions, waits_for, one_peer);
}

void ScheduledCommunicator::abort_all(const CommError& cause) {
  world_.fate->abort(group_.id, cause);
  if (world_.watch) world_.watch->abort(group_.id, group_.members, cause);
}

void ScheduledCommunicator::fail(const CommError& cause) {
  if (transport_) transport_->abandon();
  CommError first = cause;
  bool tell = true;
  try {
    world_.fate->check(group_.id, group_.members);
  } catch (const CommError& known) {
    first = known;
    // An abort is already known to all ranks. A lost connection may be known to this rank only: it can break between
    // two live ranks, and the others would wait for their deadlines.
    tell = known.kind() == CommError::Kind::lost;
  }
  dead_ = first;
  note_end(obs::FlightState::failed);
  if (tell) abort_all(first);
  throw *dead_;
}

void ScheduledCommunicator::fail_locally(const std::exception& error) {
  if (transport_) transport_->abandon();
  int me = world_.rank;
  dead_ = CommError(CommError::Kind::aborted, me, fmt::format("rank {} failed: {}", me, error.what()));
  note_end(obs::FlightState::failed);
  abort_all(*dead_);
}

}  // namespace esp::comm
