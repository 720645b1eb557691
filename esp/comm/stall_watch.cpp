#include "esp/comm/stall_watch.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "esp/comm/scheduled.h"

namespace esp::comm {
namespace {

using std::chrono::milliseconds;

constexpr auto kLook = milliseconds(100);
// A call this long is asked about; the first answers of ranks that only just began to wait say nothing yet.
constexpr auto kSuspicious = milliseconds(1000);
constexpr auto kWaiting = milliseconds(300);
constexpr auto kAnswer = milliseconds(700);
constexpr auto kAskAgain = milliseconds(300);
// A look that comes so late was not ours to make: the whole machine, or this process, was stopped. Nothing is known of
// the others until they have had time as well.
constexpr auto kSleptThrough = milliseconds(1000);
// No group of a job has this id: they are mixed from others, or 0.
constexpr uint64_t kWhereaboutsGroup = ~uint64_t{0} - 1;

net::Group with_id(net::Group group, uint64_t id) {
  group.id = id;
  return group;
}

// The lowest that waits; where messages that are no calls are waited for, the lowest that answers.
int speaker_of(const Stall& stall, std::span<const Whereabouts> all) {
  if (!stall.waiting.empty()) return stall.waiting.front();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].answers && !all[i].gone) return static_cast<int>(i);
  return -1;
}

}  // namespace

StallWatch::StallWatch(const net::World& world, Listener listener)
    : world_(world), listener_(std::move(listener)), everyone_(with_id(world.everyone(), kWhereaboutsGroup)) {
  if (!world.watch || world.size < 2) return;
  world.watch->enroll(kWhereaboutsGroup, &whereabouts_);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "esp-stalls");
}

StallWatch::~StallWatch() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  world_.watch->withdraw(kWhereaboutsGroup);
}

void StallWatch::begin(Phase phase, int64_t number, double steps_long) {
  const auto now = Clock::now();
  std::lock_guard lock(mutex_);
  // One that lasted longer than anyone's patience teaches nothing, or the next stall would be noticed late; two in a
  // row are the new way of things.
  const Duration took = now - phase_began_;
  const bool odd = std::exchange(disturbed_, false) || took > patience_.of(phase_, steps_long_);
  if (!odd || was_odd_) patience_.learn(phase_, took);
  was_odd_ = odd;
  phase_ = phase;
  number_ = number;
  steps_long_ = steps_long;
  phase_began_ = now;
  ++num_phases_;
}

void StallWatch::explain_with(Purpose purpose) {
  std::lock_guard lock(mutex_);
  purpose_ = std::move(purpose);
}

void StallWatch::run() {
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
    look(now);
    last = Clock::now();
    lock.lock();
  }
}

void StallWatch::look(Clock::time_point now) {
  const std::optional<Wait> wait = longest_wait(now);
  say_where(wait, now);
  if (told_) {
    if (still_stalled(wait)) return;
    end_stall(now);
  }
  consider(wait, now);
}

bool StallWatch::still_stalled(const std::optional<Wait>& wait) {
  if (told_->version != 0) return wait && wait->group == told_->group && wait->standing.version == told_->version;
  std::lock_guard lock(mutex_);
  return told_->phases == num_phases_;
}

std::optional<StallWatch::Wait> StallWatch::longest_wait(Clock::time_point now) {
  std::optional<Wait> longest;
  std::map<uint64_t, std::pair<uint32_t, Clock::time_point>> seen;
  for (const auto& [group, standing] : world_.watch->here()) {
    if (group == kWhereaboutsGroup || !standing.inside) continue;
    const auto before = seen_.find(group);
    const auto since = before != seen_.end() && before->second.first == standing.version ? before->second.second : now;
    seen[group] = {standing.version, since};
    if (!longest || since < longest->since) longest = Wait{group, standing, since};
  }
  seen_ = std::move(seen);
  return longest;
}

// For those who ask: in a call, since long enough to call it waiting, or not.
void StallWatch::say_where(const std::optional<Wait>& wait, Clock::time_point now) {
  Whereabouts at;
  {
    std::lock_guard lock(mutex_);
    at.phase = phase_;
    at.number = number_;
    at.in_phase = now - phase_began_;
  }
  at.waiting = wait && now - wait->since >= kWaiting;
  if (at.waiting) at.call = wait->standing.entered;
  whereabouts_.enter(packed(at));
  if (!at.waiting) whereabouts_.leave();
}

void StallWatch::consider(const std::optional<Wait>& wait, Clock::time_point now) {
  Duration patience, in_phase;
  {
    std::lock_guard lock(mutex_);
    patience = patience_.of(phase_, steps_long_);
    in_phase = now - phase_began_;
  }
  // Waits that are no calls (messages of parameter servers) show in the phase alone.
  const bool called = wait && now - wait->since >= kSuspicious;
  if ((!called && in_phase < patience + kSuspicious) || now < next_question_) return;
  const std::vector<Whereabouts> all = ask_everyone();
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
  std::optional<Stall> stall = judge(world_.rank, all);
  if (!stall) return;
  if (world_.rank != speaker_of(*stall, all)) return;
  if (stall->silent ? !twice || waited < Patience::kFloor : !called) return;
  if (!stall->silent && waited < patience) {
    next_question_ = std::min(next_question_, wait->since + patience);
    return;
  }
  tell(std::move(*stall), wait ? &*wait : nullptr, all, asked);
}

std::vector<Whereabouts> StallWatch::ask_everyone() {
  const std::vector<net::Standing> standings = world_.watch->ask(everyone_, Deadline::after(kAnswer));
  std::vector<Whereabouts> all;
  for (size_t i = 0; i < standings.size(); ++i) {
    all.push_back(unpacked(standings[i]));
    all.back().gone = world_.fate->left(static_cast<int>(i)) || world_.fate->lost(static_cast<int>(i));
  }
  return all;
}

void StallWatch::tell(Stall stall, const Wait* wait, std::span<const Whereabouts> all, Clock::time_point now) {
  Purpose purpose;
  int64_t phases = 0;
  {
    std::lock_guard lock(mutex_);
    stall.phase = phase_;
    stall.number = number_;
    disturbed_ = true;
    purpose = purpose_;
    phases = num_phases_;
    stall.waited = now - phase_began_;
  }
  if (wait) {
    stall.group = wait->group;
    stall.call = wait->standing.entered;
    stall.waited = now - wait->since;
  }
  stall.text = describe(stall, all, purpose && wait ? purpose(stall.group, stall.call) : "");
  told_ = Told{stall, stall.group, wait ? wait->standing.version : 0, now - stall.waited, phases};
  if (listener_.stalled) listener_.stalled(told_->stall);
}

void StallWatch::end_stall(Clock::time_point now) {
  Stall over = std::move(told_->stall);
  over.waited = now - told_->since;
  told_.reset();
  silent_before_.clear();
  // Those that were waited for are not the only ones with work to catch up on.
  next_question_ = now + kSuspicious;
  {
    std::lock_guard lock(mutex_);
    disturbed_ = true;
  }
  if (listener_.went_on) listener_.went_on(over);
}

std::optional<uint64_t> group_id_of(const Communicator& communicator) {
  if (const auto* ours = dynamic_cast<const Scheduled*>(&communicator)) return ours->group().id;
  return std::nullopt;
}

}  // namespace esp::comm
