#include "tests/faults/simulation/virtual_launcher.h"

#include <fmt/format.h>

namespace esp::sim {
namespace {

constexpr Time kLook = 100 * kMs;  // launch/agent.cpp
constexpr Time kGrace = 2 * kSecond;
constexpr int kPorts = 4;  // so few that an address often means another hub later

}  // namespace

VirtualLauncher::VirtualLauncher(Place& place, int max_restarts)
    : place_(place), simulation_(place.simulation), max_restarts_(max_restarts), process_(simulation_.start_process()) {
  // Whatever ends the launcher ends its ranks: the system does so, in its time.
  process_->at_end.push_back([this] {
    place_.hubs.clear();
    for (const Held& held : ranks_)
      if (held.rank)
        simulation_.at(simulation_.now() + simulation_.delay(), nullptr,
                       [this, rank = held.rank] { simulation_.end(rank->process()); });
  });
  start_round();
  look();
}

VirtualLauncher::~VirtualLauncher() = default;

VirtualLauncher::Opened VirtualLauncher::open(int round) {
  Opened opened;
  do {
    opened.port = static_cast<int>(simulation_.random.below(kPorts));
  } while (place_.hubs.contains(opened.port));
  // With a part of its own, as a hub's welcome has.
  opened.hub = std::make_unique<VirtualHub>(simulation_, place_.truth, process_, place_.num_ranks,
                                            fmt::format("job/round-{}#{}", round, num_hubs_++), place_.broken);
  place_.hubs[opened.port] = opened.hub.get();
  return opened;
}

void VirtualLauncher::close(Opened& opened) {
  if (opened.hub) place_.hubs.erase(opened.port);
  opened.hub.reset();
}

void VirtualLauncher::start_round() {
  ++start_;
  close(hub_);
  close(next_);
  hub_ = open(round_);
  words_.clear();
  failures_.clear();
  failure_.reset();
  done_ = given_up_ = stopping_ = false;
  launch::Reform::Options options;
  options.num_ranks = place_.num_ranks;
  options.round = round_;
  options.open = [this](int round) {
    close(next_);
    next_ = open(round);
    const std::string port = std::to_string(next_.port);
    return launch::Reform::Opened{{true, round, next_.hub->job(), port},
                                  {{"JOB", next_.hub->job()}, {"STORE", port}, {"ROUND", std::to_string(round)}}};
  };
  options.may_begin = [this] { return num_restarts_ < max_restarts_ && ++num_restarts_ > 0; };
  options.tell = [](const std::string&) {};
  options.formed = [this] {
    ++num_reforms_;
    close(hub_);
    hub_ = std::exchange(next_, {});
  };
  options.now = [this] { return simulation_.local(*process_); };
  reform_ = std::make_unique<launch::Reform>(*this, options);
  ranks_.assign(static_cast<size_t>(place_.num_ranks), {});
  for (int rank = 0; rank < place_.num_ranks; ++rank) spawn(rank, round_, hub_.hub->job(), hub_.port);
}

void VirtualLauncher::spawn(int rank, int round, const std::string& job, int port) {
  auto who = std::make_shared<VirtualRank*>(nullptr);
  VirtualRank::Line line{[this, rank, who](const std::string& text) { heard(rank, *who, text); },
                         [this, rank, who](int code) { ended(rank, *who, code); }};
  made_.push_back(std::make_unique<VirtualRank>(place_, rank, round, job, port, std::move(line)));
  *who = made_.back().get();
  ranks_[static_cast<size_t>(rank)] = {made_.back().get(), true, 0, 0};
}

// Words of a rank and its end come in the order they happened.
void VirtualLauncher::heard(int rank, const VirtualRank* who, const std::string& text) {
  Held& held = ranks_[static_cast<size_t>(rank)];
  if (held.rank != who) return;
  held.told_until = std::max(held.told_until, simulation_.now() + simulation_.delay());
  simulation_.at(held.told_until, process_, [this, rank, who, text] {
    if (ranks_[static_cast<size_t>(rank)].rank != who) return;
    words_.emplace_back(rank, text);
    look_soon();
  });
}

void VirtualLauncher::ended(int rank, const VirtualRank* who, int code) {
  Held& held = ranks_[static_cast<size_t>(rank)];
  if (held.rank != who) return;
  held.told_until = std::max(held.told_until, simulation_.now() + simulation_.delay());
  simulation_.at(held.told_until, process_, [this, rank, who, code] {
    Held& now = ranks_[static_cast<size_t>(rank)];
    if (now.rank != who || !now.running) return;
    now.running = false;
    if (code == 0) {
      done_ = true;
    } else if (!stopping_) {  // what dies because we ended it is not news
      if (!launch::worth_restarting(code)) unworthy_ = true;
      const launch::Failure failure{rank, code, "ended", ""};
      if (!failure_ || code > 128) failure_ = failure;
      failures_.push_back(failure);
    }
    look_soon();
  });
}

void VirtualLauncher::look() {
  if (end_) return;
  mend();
  simulation_.at(simulation_.now() + kLook, process_, [this] { look(); });
}

void VirtualLauncher::look_soon() {
  simulation_.at(simulation_.now() + simulation_.random.between(0, 2 * kMs), process_, [this] {
    if (!end_) mend();
  });
}

void VirtualLauncher::mend() {
  const auto words = std::exchange(words_, {});
  const auto failures = std::exchange(failures_, {});
  if (!given_up_) {
    const launch::Reform::Verdict verdict = reform_->attend(words, failures, false);
    if (verdict != launch::Reform::Verdict::go_on) {
      given_up_ = true;
      for (int rank = 0; rank < place_.num_ranks; ++rank)
        say(rank, launch::text_of(launch::NextRound{false, 0, "", ""}));
      end_all(verdict == launch::Reform::Verdict::stuck && num_restarts_ < max_restarts_);
    }
  }
  for (const Held& held : ranks_)
    if (held.running) return;
  after_all();
}

void VirtualLauncher::end_all(bool at_once) {
  stopping_ = true;
  for (const Held& held : ranks_)
    if (held.running && !at_once) held.rank->terminate();
  simulation_.at(simulation_.now() + (at_once ? 0 : kGrace), process_, [this, start = start_] {
    if (start != start_) return;
    for (const Held& held : ranks_)
      if (held.running) simulation_.end(held.rank->process());
  });
}

void VirtualLauncher::after_all() {
  round_ = reform_->round() + 1;
  const launch::RoundEnd end = launch::end_of_round(0, false, failure_, *reform_);
  const launch::Then then = launch::after_round(launch::cause_of({end}), false, num_restarts_, max_restarts_);
  if (then != launch::Then::again) {
    end_ = then;
    return;
  }
  ++round_;
  ++num_restarts_;
  start_round();
}

void VirtualLauncher::say(int rank, const std::string& text) {
  Held& held = ranks_[static_cast<size_t>(rank)];
  if (!held.running) return;
  held.said_until = std::max(held.said_until, simulation_.now() + simulation_.delay());
  simulation_.at(held.said_until, held.rank->process(), [to = held.rank, text] { to->hear(text); });
}

void VirtualLauncher::kill(int rank) {
  Held& held = ranks_[static_cast<size_t>(rank)];
  if (!held.running) return;
  if (place_.broken.forget_to_kill) return ended(rank, held.rank, 128 + 9);
  simulation_.at(simulation_.now() + simulation_.delay(), nullptr,
                 [this, who = held.rank] { simulation_.end(who->process()); });
}

bool VirtualLauncher::respawn(int rank, const launch::Environment& changed) {
  bool all_ended = true;
  for (const Held& held : ranks_) all_ended = all_ended && !held.running;
  if (all_ended || stopping_) return false;
  spawn(rank, std::stoi(changed.at("ROUND")), changed.at("JOB"), std::stoi(changed.at("STORE")));
  return true;
}

}  // namespace esp::sim
