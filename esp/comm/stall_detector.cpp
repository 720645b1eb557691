#include "esp/comm/stall_detector.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "esp/comm/scheduled_communicator.h"

namespace esp::comm {
namespace {

using std::chrono::milliseconds;

constexpr auto kSampleInterval = milliseconds(100);
// After this time in a call, this rank queries the others. An earlier query would be inconclusive, because some ranks
// may have only just begun to wait.
constexpr auto kQueryThreshold = milliseconds(1000);
constexpr auto kWaitThreshold = milliseconds(300);
constexpr auto kQueryTimeout = milliseconds(700);
constexpr auto kRequeryInterval = milliseconds(300);
// If a sample is late by this much, the machine or this process was suspended. The other ranks may have been suspended
// too, so they get time to continue before they are diagnosed.
constexpr auto kSuspendThreshold = milliseconds(1000);
// Group id reserved for status queries. Ids of real groups are 0 or hashes.
constexpr uint64_t kStatusGroup = ~uint64_t{0} - 1;

net::Group with_id(net::Group group, uint64_t id) {
  group.id = id;
  return group;
}

// The rank that reports the stall: the lowest rank that waits in a call. If no rank waits in a call, the lowest rank
// that answers.
int reporting_rank(const Stall& stall, std::span<const RankStatus> all) {
  if (!stall.waiting.empty()) return stall.waiting.front();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].answers && !all[i].exited) return static_cast<int>(i);
  return -1;
}

}  // namespace

StallDetector::StallDetector(const net::World& world, Callbacks callbacks)
    : world_(world), callbacks_(std::move(callbacks)), all_ranks_(with_id(world.world_group(), kStatusGroup)) {
  if (!world.failure_detector || world.size < 2) return;
  world.failure_detector->register_position(kStatusGroup, &status_);
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
  world_.failure_detector->unregister_position(kStatusGroup);
}

void StallDetector::begin(Phase phase, int64_t number, double expected_steps) {
  const auto now = Clock::now();
  std::lock_guard lock(mutex_);
  // A single phase longer than its stall timeout is not recorded, because it would delay the detection of the next
  // stall. If the previous phase was also too long, the duration is recorded as the new normal.
  const Duration took = now - phase_began_;
  const bool outlier = std::exchange(phase_stalled_, false) || took > timeout_.timeout(phase_, expected_steps_);
  if (!outlier || previous_outlier_) timeout_.record(phase_, took);
  previous_outlier_ = outlier;
  phase_ = phase;
  number_ = number;
  expected_steps_ = expected_steps;
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
  while (!changed_.wait_for(lock, kSampleInterval, [&] { return stopping_; })) {
    lock.unlock();
    const auto now = Clock::now();
    if (now - last > kSampleInterval + kSuspendThreshold) {
      last_seen_.clear();
      previously_silent_.clear();
      next_query_ = now + kQueryThreshold;
    }
    sample(now);
    last = Clock::now();
    lock.lock();
  }
}

void StallDetector::sample(Clock::time_point now) {
  const std::optional<CallWait> wait = longest_wait(now);
  publish_status(wait, now);
  if (reported_) {
    if (still_stalled(wait)) return;
    end_stall(now);
  }
  evaluate(wait, now);
}

bool StallDetector::still_stalled(const std::optional<CallWait>& wait) {
  if (reported_->version != 0)
    return wait && wait->group == reported_->group && wait->position.version == reported_->version;
  std::lock_guard lock(mutex_);
  return reported_->phases == num_phases_;
}

std::optional<StallDetector::CallWait> StallDetector::longest_wait(Clock::time_point now) {
  std::optional<CallWait> longest;
  std::map<uint64_t, std::pair<uint32_t, Clock::time_point>> seen;
  for (const auto& [group, position] : world_.failure_detector->local_positions()) {
    if (group == kStatusGroup || !position.inside) continue;
    const auto before = last_seen_.find(group);
    const auto since =
        before != last_seen_.end() && before->second.first == position.version ? before->second.second : now;
    seen[group] = {position.version, since};
    if (!longest || since < longest->since) longest = CallWait{group, position, since};
  }
  last_seen_ = std::move(seen);
  return longest;
}

// Publishes this rank's status for queries.
void StallDetector::publish_status(const std::optional<CallWait>& wait, Clock::time_point now) {
  RankStatus at;
  {
    std::lock_guard lock(mutex_);
    at.phase = phase_;
    at.number = number_;
    at.in_phase = now - phase_began_;
  }
  at.waiting = wait && now - wait->since >= kWaitThreshold;
  if (at.waiting) at.call = wait->position.entered;
  status_.enter(encode_status(at));
  if (!at.waiting) status_.leave();
}

void StallDetector::evaluate(const std::optional<CallWait>& wait, Clock::time_point now) {
  Duration timeout, in_phase;
  {
    std::lock_guard lock(mutex_);
    timeout = timeout_.timeout(phase_, expected_steps_);
    in_phase = now - phase_began_;
  }
  // A rank that waits outside calls (for parameter-server messages) is visible only as a long phase.
  const bool called = wait && now - wait->since >= kQueryThreshold;
  if ((!called && in_phase < timeout + kQueryThreshold) || now < next_query_) return;
  const std::vector<RankStatus> all = query_all();
  std::vector<int> silent;
  for (size_t i = 0; i < all.size(); ++i)
    if (!all[i].answers && !all[i].exited) silent.push_back(static_cast<int>(i));
  const bool twice = !silent.empty() && silent == previously_silent_;
  previously_silent_ = std::move(silent);
  const auto asked = Clock::now();
  const Duration waited = wait ? asked - wait->since : in_phase;
  next_query_ =
      asked + (previously_silent_.empty() ? std::clamp<Duration>(waited / 2, kRequeryInterval, std::chrono::seconds(5))
                                          : Duration(kRequeryInterval / 3));
  std::optional<Stall> stall = diagnose_stall(world_.rank, all);
  if (!stall) return;
  if (world_.rank != reporting_rank(*stall, all)) return;
  if (stall->silent ? !twice || waited < StallTimeout::kFloor : !called) return;
  if (!stall->silent && waited < timeout) {
    next_query_ = std::min(next_query_, wait->since + timeout);
    return;
  }
  report(std::move(*stall), wait ? &*wait : nullptr, all, asked);
}

std::vector<RankStatus> StallDetector::query_all() {
  const std::vector<net::CallPosition> positions =
      world_.failure_detector->query_positions(all_ranks_, Deadline::after(kQueryTimeout));
  std::vector<RankStatus> all;
  for (size_t i = 0; i < positions.size(); ++i) {
    all.push_back(decode_status(positions[i]));
    all.back().exited =
        world_.peer_status->has_left(static_cast<int>(i)) || world_.peer_status->is_lost(static_cast<int>(i));
  }
  return all;
}

void StallDetector::report(Stall stall, const CallWait* wait, std::span<const RankStatus> all, Clock::time_point now) {
  CallLabeler labeler;
  int64_t phases = 0;
  {
    std::lock_guard lock(mutex_);
    stall.phase = phase_;
    stall.number = number_;
    phase_stalled_ = true;
    labeler = labeler_;
    phases = num_phases_;
    stall.waited = now - phase_began_;
  }
  if (wait) {
    stall.group = wait->group;
    stall.call = wait->position.entered;
    stall.waited = now - wait->since;
  }
  stall.text = describe(stall, all, labeler && wait ? labeler(stall.group, stall.call) : "");
  reported_ = ReportedStall{stall, stall.group, wait ? wait->position.version : 0, now - stall.waited, phases};
  if (callbacks_.stalled) callbacks_.stalled(reported_->stall);
}

void StallDetector::end_stall(Clock::time_point now) {
  Stall ended = std::move(reported_->stall);
  ended.waited = now - reported_->since;
  reported_.reset();
  previously_silent_.clear();
  // After a stall the other ranks have work to catch up on, so the next query is delayed.
  next_query_ = now + kQueryThreshold;
  {
    std::lock_guard lock(mutex_);
    phase_stalled_ = true;
  }
  if (callbacks_.resumed) callbacks_.resumed(ended);
}

std::optional<uint64_t> group_id_of(const Communicator& communicator) {
  if (const auto* scheduled = dynamic_cast<const ScheduledCommunicator*>(&communicator)) return scheduled->group().id;
  return std::nullopt;
}

}  // namespace esp::comm
