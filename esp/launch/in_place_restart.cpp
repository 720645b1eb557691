#include "esp/launch/in_place_restart.h"

#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/launch/agent.h"

namespace esp::launch {

InPlaceRestart::Decision InPlaceRestart::poll(const std::vector<std::pair<int, std::string>>& messages,
                                              const std::vector<Failure>& failures, bool stopping) {
  bool fatal = false;
  // Messages are processed before failures, because a rank may have sent a message before it died.
  for (const auto& [rank, text] : messages)
    if (const auto message = parse_rank_message(text)) on_message(rank, *message);
  for (const Failure& failure : failures) {
    if (stopping || !worth_restarting(failure.exit_code)) {
      fatal = true;
      if (!fatal_failure_) fatal_failure_ = failure;
    }
    if (!fatal) on_failure(failure);
  }
  // If a rank fails while the others complete the job, they exit with code 0 after its replacement was started.
  if (state_ == State::collecting && !give_up_reason_) give_up_if_finished();
  check_timeouts();
  if (!fatal && !give_up_reason_) return Decision::proceed;
  report_outcome();
  return fatal ? Decision::abort : Decision::restart_all;
}

// A rank that has completed the job cannot join a further round.
bool InPlaceRestart::give_up_if_finished() {
  if (!processes_.any_finished()) return false;
  give_up_reason_ = "some ranks have already finished";
  return true;
}

bool InPlaceRestart::begin_round() {
  if (give_up_if_finished()) return false;
  if (!options_.may_restart()) {
    give_up_reason_ = "no further restart is allowed";
    return false;
  }
  report_outcome();
  state_ = State::collecting;
  failed_at_ = options_.now();
  deadline_ = options_.now() + options_.timeout;
  killed_some_ = false;
  waiting_.clear();
  ready_.clear();
  connected_.clear();
  losses_.clear();
  resumed_.clear();
  next_round_ = options_.open_round(round_ + 1);
  return true;
}

void InPlaceRestart::on_failure(const Failure& failure) {
  if (give_up_reason_) return;
  const int rank = failure.rank - options_.first_rank;
  if (state_ == State::connecting) {
    give_up_reason_ = fmt::format("rank {} {} while the ranks reconnected", failure.rank, failure.reason);
    return;
  }
  if (state_ == State::running && !begin_round()) return;
  if (ready_.contains(rank)) {
    // The replacement died after `ready`. It may have joined the rendezvous, and then the other ranks would wait for
    // it.
    give_up_reason_ = fmt::format("rank {} {} right after it was restarted", failure.rank, failure.reason);
    return;
  }
  waiting_.erase(rank);
  losses_ += fmt::format("{}rank {} {}", losses_.empty() ? "" : ", ", failure.rank, failure.reason);
  if (!processes_.respawn(rank, next_round_.environment)) give_up_reason_ = "all ranks have ended";
}

void InPlaceRestart::on_message(int rank, const RankMessage& message) {
  if (give_up_reason_) return;
  switch (message.kind) {
    case RankMessage::Kind::waiting:
      if (message.round != round_) break;
      if (state_ == State::running && !begin_round()) return;
      (state_ == State::connecting ? waiting_early_ : waiting_).insert(rank);
      break;
    case RankMessage::Kind::ready:
      if (state_ == State::collecting && message.round == round_ + 1) ready_.insert(rank);
      break;
    case RankMessage::Kind::formed:
      if (message.round == round_ + (state_ == State::collecting ? 1 : 0)) connected_.insert(rank);
      break;
    case RankMessage::Kind::resumed:
      if (message.round != round_) break;
      resumed_ = message.text;
      if (state_ == State::running) report_outcome();
      break;
  }
  update_state();
}

void InPlaceRestart::update_state() {
  const auto all = static_cast<size_t>(options_.num_ranks);
  if (state_ == State::collecting && num_present() == all) send_next_round();
  if (state_ != State::connecting || connected_.size() != all) return;
  state_ = State::running;
  deadline_.reset();
  if (failed_at_) on_recovered();
  // Some ranks lost a peer again before the last rank reported `formed`: the next recovery starts at once.
  const std::set<int> early = std::exchange(waiting_early_, {});
  if (early.empty() || !begin_round()) return;
  waiting_ = early;
  update_state();
}

void InPlaceRestart::on_recovered() {
  const size_t restarted = connected_.size() - waiting_.size();
  outcome_ = fmt::format("{} rank{} restarted, {} kept", restarted, restarted == 1 ? "" : "s", waiting_.size());
  processes_.clear_failures();
  options_.on_connected();
  if (!resumed_.empty()) report_outcome();
}

// Prints one line per recovery, as soon as the ranks have resumed or cannot resume any more.
void InPlaceRestart::report_outcome() {
  if (outcome_.empty()) return;
  const double seconds = std::chrono::duration<double>(options_.now() - *failed_at_).count();
  const std::string time = seconds < 1 ? fmt::format("{:.0f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
  options_.print_line(fmt::format("{}; recovered in {}: {}{}{}", losses_.empty() ? "ranks lost each other" : losses_,
                                  time, std::exchange(outcome_, {}), resumed_.empty() ? "" : "; ", resumed_));
}

void InPlaceRestart::send_next_round() {
  state_ = State::connecting;
  ++round_;
  deadline_ = options_.now() + options_.timeout;
  const std::string text = encode(next_round_.next);
  for (int rank : waiting_) processes_.send(rank, text);
}

void InPlaceRestart::check_timeouts() {
  if (give_up_reason_ || !deadline_ || options_.now() < *deadline_) return;
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  if (state_ == State::connecting || killed_some_) {
    give_up_reason_ = fmt::format("the ranks did not reconnect within {} s", seconds);
    return;
  }
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    if (waiting_.contains(rank) || ready_.contains(rank)) continue;
    options_.print_line(fmt::format("rank {} did not report the lost peer within {} s; killing it",
                                    options_.first_rank + rank, seconds));
    processes_.kill(rank);
  }
  killed_some_ = true;
  deadline_ = options_.now() + options_.timeout;
}

}  // namespace esp::launch
