#include "esp/launch/reform.h"

#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/launch/agent.h"

namespace esp::launch {

Reform::Verdict Reform::attend(const std::vector<std::pair<int, std::string>>& words,
                               const std::vector<Failure>& failures, bool stopping) {
  bool for_good = false;
  // Words first: one that died may have said before that it was there.
  for (const auto& [rank, text] : words)
    if (const auto word = word_of(text)) heard(rank, *word);
  for (const Failure& failure : failures) {
    if (stopping || !worth_restarting(failure.exit_code)) {
      for_good = true;
      if (!condemned_) condemned_ = failure;
    }
    if (!for_good) lost(failure);
  }
  look();
  if (!for_good && !stuck_) return Verdict::go_on;
  tell();
  return for_good ? Verdict::for_good : Verdict::stuck;
}

bool Reform::begin() {
  if (job_.any_done()) {
    stuck_ = "some ranks have ended already";
    return false;
  }
  if (!options_.may_begin()) {
    stuck_ = "no further restart is allowed";
    return false;
  }
  tell();
  state_ = State::gathering;
  begun_ = options_.now();
  patience_ = options_.now() + options_.patience;
  killed_some_ = false;
  waiting_.clear();
  ready_.clear();
  formed_.clear();
  losses_.clear();
  resumed_.clear();
  opened_ = options_.open(round_ + 1);
  return true;
}

void Reform::lost(const Failure& failure) {
  if (stuck_) return;
  const int rank = failure.rank - options_.first_rank;
  if (state_ == State::forming) {
    stuck_ = fmt::format("rank {} {} while the ranks met", failure.rank, failure.how);
    return;
  }
  if (state_ == State::whole && !begin()) return;
  if (ready_.contains(rank)) {
    // It may have joined already, and who has joined is waited for.
    stuck_ = fmt::format("rank {} {} as soon as it was started", failure.rank, failure.how);
    return;
  }
  waiting_.erase(rank);
  losses_ += fmt::format("{}rank {} {}", losses_.empty() ? "" : ", ", failure.rank, failure.how);
  if (!job_.respawn(rank, opened_.environment)) stuck_ = "all ranks have ended";
}

void Reform::heard(int rank, const Word& word) {
  if (stuck_) return;
  switch (word.kind) {
    case Word::Kind::waiting:
      if (word.round != round_) break;
      if (state_ == State::whole && !begin()) return;
      (state_ == State::forming ? early_ : waiting_).insert(rank);
      break;
    case Word::Kind::ready:
      if (state_ == State::gathering && word.round == round_ + 1) ready_.insert(rank);
      break;
    case Word::Kind::formed:
      if (word.round == round_ + (state_ == State::gathering ? 1 : 0)) formed_.insert(rank);
      break;
    case Word::Kind::resumed:
      if (word.round != round_) break;
      resumed_ = word.text;
      if (state_ == State::whole) tell();
      break;
  }
  settle();
}

void Reform::settle() {
  const auto all = static_cast<size_t>(options_.num_ranks);
  if (state_ == State::gathering && num_present() == all) announce();
  if (state_ != State::forming || formed_.size() != all) return;
  state_ = State::whole;
  patience_.reset();
  if (begun_) recovered();
  // Some have lost another before the last one said that it was there.
  const std::set<int> early = std::exchange(early_, {});
  if (early.empty() || !begin()) return;
  waiting_ = early;
  settle();
}

void Reform::recovered() {
  const size_t restarted = formed_.size() - waiting_.size();
  outcome_ = fmt::format("{} rank{} restarted, {} kept", restarted, restarted == 1 ? "" : "s", waiting_.size());
  job_.forgive();
  options_.formed();
  if (!resumed_.empty()) tell();
}

// Once per recovery: when the ranks have resumed, or when they will not.
void Reform::tell() {
  if (outcome_.empty()) return;
  const double seconds = std::chrono::duration<double>(options_.now() - *begun_).count();
  const std::string time = seconds < 1 ? fmt::format("{:.0f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
  options_.tell(fmt::format("{}; recovered in {}: {}{}{}", losses_.empty() ? "ranks lost each other" : losses_, time,
                            std::exchange(outcome_, {}), resumed_.empty() ? "" : "; ", resumed_));
}

void Reform::announce() {
  state_ = State::forming;
  ++round_;
  patience_ = options_.now() + options_.patience;
  const std::string text = text_of(opened_.next);
  for (int rank : waiting_) job_.say(rank, text);
}

void Reform::look() {
  if (stuck_ || !patience_ || options_.now() < *patience_) return;
  const double seconds = std::chrono::duration<double>(options_.patience).count();
  if (state_ == State::forming || killed_some_) {
    stuck_ = fmt::format("the ranks did not meet within {} s", seconds);
    return;
  }
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    if (waiting_.contains(rank) || ready_.contains(rank)) continue;
    options_.tell(fmt::format("rank {} has not noticed the loss of another within {} s: it is killed",
                              options_.first_rank + rank, seconds));
    job_.kill(rank);
  }
  killed_some_ = true;
  patience_ = options_.now() + options_.patience;
}

}  // namespace esp::launch
