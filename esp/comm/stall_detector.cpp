#include "esp/comm/stall_detector.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "esp/comm/scheduled_communicator.h"

namespace esp::comm {
namespace {

using std::chrono::milliseconds;

constexpr auto kLook = milliseconds(100);
// Calls longer than this trigger a query. The first answers of ranks that only just began to wait are not conclusive.
constexpr auto kSuspicious = milliseconds(1000);
constexpr auto kWaiting = milliseconds(300);
constexpr auto kAnswer = milliseconds(700);
constexpr auto kAskAgain = milliseconds(300);
// If a sample comes this late, the machine or this process was suspended. The other ranks need time too before they are
// judged.
constexpr auto kSleptThrough = milliseconds(1000);
// No group of a job has this id: ids are hashes of others, or 0.
constexpr uint64_t kStatusGroup = ~uint64_t{0} - 1;

net::Group with_id(net::Group group, uint64_t id) {
  group.id = id;
  return group;
}

// The lowest waiting rank; if ranks wait for messages that are not calls, the lowest that answers.
int speaker_of(const Stall& stall, std::span<const RankStatus> all) {
  if (!stall.waiting.empty()) return stall.waiting.front();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].answers && !all[i].gone) return static_cast<int>(i);
  return -1;
}

}  // namespace

StallDetector::StallDetector(const net::World& world, Callbacks listener)
    : world_(world), listener_(std::move(listener)), all_ranks_(with_id(world.everyone(), kStatusGroup)) {
  if (!world.watch || world.size < 2) return;
  world.watch->enroll(kStatusGroup, &status_);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "esp-stalls");
}

StallDetector::~StallDetector() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  world_.watch->withdraw(kStatusGroup);
}

void StallDetector::begin(Phase phase, int64_t number, double steps_long) {
  const auto now = Clock::now();
  std::lock_guard lock(mutex_);
  // A single outlier longer than the stall timeout is not recorded, or the next stall would be detected late; two in a
  // row are the new normal.
  const Duration took = now - phase_began_;
  const bool odd = std::exchange(disturbed_, false) || took > stall_timeout_.timeout(phase_, steps_long_);
  if (!odd || was_odd_) stall_timeout_.record(phase_, took);
  was_odd_ = odd;
  phase_ = phase;
  number_ = number;
  steps_long_ = steps_long;
  phase_began_ = now;
  ++num_phases_;
}

void StallDetector::set_call_labeler(CallLabeler labeler) {
  std::lock_guard lock(mutex_);
  labeler_ = std::move(labeler);
}

void StallDetector::run() {
  auto last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [&] { return stopping_; })) {
    lock.unlock();
    const auto now = Clock::now();
    if (now - last > kLook + kSleptThrough) {
      seen_.clear();
      silent_before_.clear();
      next_question_ = now + kSuspicious;
    }
    sample(now);
    last = Clock::now();
    lock.lock();
  }
}

void StallDetector::sample(Clock::time_point now) {
  const std::optional<Wait> wait = longest_wait(now);
  publish_status(wait, now);
  if (reported_) {
    if (still_stalled(wait)) return;
    end_stall(now);
  }
  evaluate(wait, now);
}

bool StallDetector::still_stalled(const std::optional<Wait>& wait) {
  if (reported_->version != 0)
    return wait && wait->group == reported_->group && wait->standing.version == reported_->version;
  std::lock_guard lock(mutex_);
  return reported_->phases == num_phases_;
}

std::optional<StallDetector::Wait> StallDetector::longest_wait(Clock::time_point now) {
  std::optional<Wait> longest;
  std::map<uint64_t, std::pair<uint32_t, Clock::time_point>> seen;
  for (const auto& [group, standing] : world_.watch->here()) {
    if (group == kStatusGroup || !standing.inside) continue;
    const auto before = seen_.find(group);
    const auto since = before != seen_.end() && before->second.first == standing.version ? before->second.second : now;
    seen[group] = {standing.version, since};
    if (!longest || since < longest->since) longest = Wait{group, standing, since};
  }
  seen_ = std::move(seen);
  return longest;
}

// Published for queries: in a call for longer than the threshold, or not.
void StallDetector::publish_status(const std::optional<Wait>& wait, Clock::time_point now) {
  RankStatus at;
  {
    std::lock_guard lock(mutex_);
    at.phase = phase_;
    at.number = number_;
    at.in_phase = now - phase_began_;
  }
  at.waiting = wait && now - wait->since >= kWaiting;
  if (at.waiting) at.call = wait->standing.entered;
  status_.enter(encode_status(at));
  if (!at.waiting) status_.leave();
}

void StallDetector::evaluate(const std::optional<Wait>& wait, Clock::time_point now) {
  Duration timeout, in_phase;
  {
    std::lock_guard lock(mutex_);
    timeout = stall_timeout_.timeout(phase_, steps_long_);
    in_phase = now - phase_began_;
  }
  // Waits outside calls (parameter-server messages) show only in the phase.
  const bool called = wait && now - wait->since >= kSuspicious;
  if ((!called && in_phase < timeout + kSuspicious) || now < next_question_) return;
  const std::vector<RankStatus> all = query_all();
  std::vector<int> silent;
  for (size_t i = 0; i < all.size(); ++i)
    if (!all[i].answers && !all[i].gone) silent.push_back(static_cast<int>(i));
  const bool twice = !silent.empty() && silent == silent_before_;
  silent_before_ = std::move(silent);
  const auto asked = Clock::now();
  const Duration waited = wait ? asked - wait->since : in_phase;
  next_question_ =
      asked + (silent_before_.empty() ? std::clamp<Duration>(waited / 2, kAskAgain, std::chrono::seconds(5))
                                      : Duration(kAskAgain / 3));
  std::optional<Stall> stall = diagnose_stall(world_.rank, all);
  if (!stall) return;
  if (world_.rank != speaker_of(*stall, all)) return;
  if (stall->silent ? !twice || waited < StallTimeout::kFloor : !called) return;
  if (!stall->silent && waited < timeout) {
    next_question_ = std::min(next_question_, wait->since + timeout);
    return;
  }
  report(std::move(*stall), wait ? &*wait : nullptr, all, asked);
}

std::vector<RankStatus> StallDetector::query_all() {
  const std::vector<net::Standing> positions = world_.watch->ask(all_ranks_, Deadline::after(kAnswer));
  std::vector<RankStatus> all;
  for (size_t i = 0; i < positions.size(); ++i) {
    all.push_back(decode_status(positions[i]));
    all.back().gone = world_.fate->left(static_cast<int>(i)) || world_.fate->lost(static_cast<int>(i));
  }
  return all;
}

void StallDetector::report(Stall stall, const Wait* wait, std::span<const RankStatus> all, Clock::time_point now) {
  CallLabeler labeler;
  int64_t phases = 0;
  {
    std::lock_guard lock(mutex_);
    stall.phase = phase_;
    stall.number = number_;
    disturbed_ = true;
    labeler = labeler_;
    phases = num_phases_;
    stall.waited = now - phase_began_;
  }
  if (wait) {
    stall.group = wait->group;
    stall.call = wait->standing.entered;
    stall.waited = now - wait->since;
  }
  stall.text = describe(stall, all, labeler && wait ? labeler(stall.group, stall.call) : "");
  reported_ = ReportedStall{stall, stall.group, wait ? wait->standing.version : 0, now - stall.waited, phases};
  if (listener_.stalled) listener_.stalled(reported_->stall);
}

void StallDetector::end_stall(Clock::time_point now) {
  Stall over = std::move(reported_->stall);
  over.waited = now - reported_->since;
  reported_.reset();
  silent_before_.clear();
  // The ranks that were waited for are not the only ones with work to catch up on.
  next_question_ = now + kSuspicious;
  {
    std::lock_guard lock(mutex_);
    disturbed_ = true;
  }
  if (listener_.went_on) listener_.went_on(over);
}

std::optional<uint64_t> group_id_of(const Communicator& communicator) {
  if (const auto* ours = dynamic_cast<const ScheduledCommunicator*>(&communicator)) return ours->group().id;
  return std::nullopt;
}

}  // namespace esp::comm
