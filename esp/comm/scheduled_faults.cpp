// How a communicator ends: what is asked, who is told, what every later call repeats.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/blame.h"
#include "esp/comm/scheduled.h"
#include "esp/net/watch.h"

namespace esp::comm {
namespace {

// How long a rank has to say where it stands before it counts as stopped. Waited for to the end only where one is: a
// machine with more to do than cores may take seconds, and who is merely slow must not be blamed.
constexpr auto kAnswer = std::chrono::seconds(3);
// The same while there is time left: a rank that is silent now may answer at the next look.
constexpr auto kGlance = std::chrono::milliseconds(100);

// Whether no member can have been done with this call, and have left, before this rank began it. A root that only sends
// can, and so can one whose part is empty.
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

void Scheduled::check_fate(const Call& starting) {
  uint32_t epoch = world_.fate->epoch();
  if (epoch == epoch_) return;
  if (!needs_everyone(starting, size())) return world_.fate->check(group_.id, group_.members);
  world_.fate->check_present(group_.id, group_.members);
  epoch_ = epoch;
}

void Scheduled::settle(Executor::Outcome outcome, const Call& call) {
  if (outcome == Executor::Outcome::done) return;
  if (outcome == Executor::Outcome::expired) expire(call, executor_->waits_for());
  bool one_peer = call.op == Op::send || call.op == Op::recv;
  throw mismatch_error(executor_->mismatch(), group_, one_peer ? describe(call) : describe(tag_));
}

// Nothing has moved for a while. Ranks that wait for each other in different calls need not meet in a message; where
// they stand tells them apart long before the deadline.
void Scheduled::look_around() {
  net::Tag mine = standings_.mine().read().entered;
  std::optional<Op> op = op_of(mine);
  if (!op || !is_collective(*op)) return;
  std::vector<int> awaited;
  if (*op == Op::all_to_all_v)
    for (const Executor::Message& message : messages_)
      if (!message.sends && message.transfer.state == net::Transfer::State::posted && message.transfer.moved == 0)
        awaited.push_back(message.transfer.peer);
  auto standings = standings_.ask(Deadline::after(kGlance));
  if (auto found = difference_error(mine, group_, standings, awaited)) throw *found;
}

void Scheduled::expire(const Call& call, int waits_for) {
  if (transport_) transport_->abandon();
  // Someone may have found the cause while we waited, or find it while we ask.
  world_.fate->check(group_.id, group_.members);
  auto standings = standings_.ask(Deadline::after(kAnswer));
  world_.fate->check(group_.id, group_.members);
  net::Tag mine = standings_.mine().read().entered;
  bool one_peer = call.op == Op::send || call.op == Op::recv || call.op == Op::wait;
  throw deadline_error(mine, timeout_of(call), group_, standings, waits_for, one_peer);
}

void Scheduled::tell_everyone(const CommError& cause) {
  world_.fate->abort(group_.id, cause);
  if (world_.watch) world_.watch->abort(group_.id, group_.members, cause);
}

void Scheduled::die(const CommError& cause) {
  if (transport_) transport_->abandon();
  CommError first = cause;
  bool tell = true;
  try {
    world_.fate->check(group_.id, group_.members);
  } catch (const CommError& known) {
    first = known;
    // An abort came from someone who told everybody. A loss may be known here only: a connection can break between two
    // ranks that both live, and the others would wait for their deadlines.
    tell = known.kind() == CommError::Kind::lost;
  }
  dead_ = first;
  note_end(obs::FlightState::failed);
  if (tell) tell_everyone(first);
  throw *dead_;
}

void Scheduled::fail_here(const std::exception& error) {
  if (transport_) transport_->abandon();
  int me = world_.rank;
  dead_ = CommError(CommError::Kind::aborted, me, fmt::format("rank {} failed: {}", me, error.what()));
  note_end(obs::FlightState::failed);
  tell_everyone(*dead_);
}

}  // namespace esp::comm
