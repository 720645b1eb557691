// How a communicator ends: what is asked, who is told, what every later call repeats.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/blame.h"
#include "esp/comm/scheduled.h"
#include "esp/net/watch.h"

namespace esp::comm {
namespace {

// How long a rank has to say where it stands before it counts as stopped.
constexpr auto kAnswer = std::chrono::milliseconds(700);

}  // namespace

void Scheduled::check_fate() {
  uint32_t epoch = world_.fate->epoch();
  if (epoch == epoch_) return;
  world_.fate->check(group_.id, group_.members);
  epoch_ = epoch;
}

void Scheduled::settle(Executor::Outcome outcome, const Call& call) {
  if (outcome == Executor::Outcome::done) return;
  if (outcome == Executor::Outcome::expired) expire(call, executor_->waits_for());
  bool one_peer = call.op == Op::send || call.op == Op::recv;
  throw mismatch_error(executor_->mismatch(), group_, one_peer ? describe(call) : describe(tag_));
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
