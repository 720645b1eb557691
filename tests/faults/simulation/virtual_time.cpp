#include "tests/faults/simulation/virtual_time.h"

#include <algorithm>
#include <utility>

namespace esp::sim {
namespace {

// Connections are reset after an interruption of this length. In a real job NetOptions::link_timeout sets it.
constexpr Time kKeepAlive = 6 * kSecond;

}  // namespace

uint64_t Random::bits() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

ProcessPtr Simulation::start_process() {
  auto process = std::make_shared<Process>();
  process->pid = next_pid_++;
  process->rate = 1 + static_cast<double>(random.between(-50, 50)) * 1e-4;
  process->ahead = random.below(1000 * kSecond);
  return process;
}

void Simulation::end(const ProcessPtr& process) {
  if (!process->alive) return;
  process->alive = false;
  for (const auto& weak : process->links)
    if (const LinkPtr link = weak.lock()) {
      // The operating system closes the connection. If unread bytes are left, the peer gets a reset instead; here this
      // is random.
      if (random.chance(0.3)) {
        reset(link);
      } else {
        close(link, link->sides[0].process == process ? 0 : 1);
      }
    }
  process->links.clear();
  for (const auto& callback : std::exchange(process->at_end, {})) callback();
}

void Simulation::stop(const ProcessPtr& process, Time for_long) {
  process->stopped_until = std::max(process->stopped_until, now_ + for_long);
}

Clock::time_point Simulation::local(const Process& process) const {
  const double micros = static_cast<double>(process.ahead) + static_cast<double>(now_) * process.rate;
  return Clock::time_point(std::chrono::microseconds(static_cast<int64_t>(micros)));
}

void Simulation::after(const ProcessPtr& process, Duration by_its_clock, std::function<void()> what) {
  const auto micros = static_cast<double>(std::chrono::ceil<std::chrono::microseconds>(by_its_clock).count());
  at(now_ + std::max<Time>(0, static_cast<Time>(micros / process->rate) + 2), process, std::move(what));
}

void Simulation::at(Time when, const ProcessPtr& process, std::function<void()> what) {
  events_.push({when, next_order_++, process, std::move(what)});
}

bool Simulation::step() {
  if (events_.empty()) return false;
  Event event = events_.top();
  events_.pop();
  now_ = std::max(now_, event.when);
  if (event.process && !event.process->alive) return true;
  if (event.process && stopped(*event.process)) {
    event.when = event.process->stopped_until;
    events_.push(std::move(event));  // the event keeps its number, so that delayed events stay in order
    return true;
  }
  event.what();
  return true;
}

LinkPtr Simulation::connect(const ProcessPtr& from, const ProcessPtr& to) {
  auto link = std::make_shared<Link>();
  link->sides[0].process = from;
  link->sides[1].process = to;
  for (const ProcessPtr& process : {from, to}) {
    std::erase_if(process->links, [](const auto& weak) { return weak.expired(); });
    process->links.push_back(link);
  }
  return link;
}

Time Simulation::delay() {
  const Time usual = random.between(20, 400);
  if (now_ < slow_until_) return usual + random.between(0, 2 * kSecond);
  return random.chance(0.03) ? usual + random.between(0, 30 * kMs) : usual;
}

Time Simulation::partitioned_until(const Process& a, const Process& b) const {
  Time until = 0;
  for (const Partition& parting : partitions_)
    if ((parting.a == a.pid && parting.b == b.pid) || (parting.a == b.pid && parting.b == a.pid))
      until = std::max(until, parting.until);
  return until;
}

void Simulation::arrive(const LinkPtr& link, int to, std::function<void(Side&)> what) {
  Side& side = link->sides[to];
  const Time parted = partitioned_until(*link->sides[0].process, *link->sides[1].process);
  side.last = std::max({side.last, now_ + delay(), parted > now_ ? parted + delay() : 0});
  at(side.last, side.process, [link, to, what = std::move(what)] {
    if (link->sides[to].open && !link->reset) what(link->sides[to]);
  });
}

void Simulation::send(const LinkPtr& link, int from, std::string_view bytes) {
  if (link->reset || !link->sides[from].open) return;
  while (!bytes.empty()) {
    const size_t piece =
        random.chance(0.8) ? bytes.size() : static_cast<size_t>(random.between(1, static_cast<int64_t>(bytes.size())));
    arrive(link, 1 - from, [text = std::string(bytes.substr(0, piece))](Side& side) {
      if (side.on_bytes) side.on_bytes(text);
    });
    bytes.remove_prefix(piece);
  }
}

void Simulation::close(const LinkPtr& link, int from) {
  if (!link->sides[from].open) return;
  link->sides[from].open = false;
  if (link->reset) return;
  arrive(link, 1 - from, [](Side& side) {
    side.open = false;
    if (side.on_closed) side.on_closed();
  });
}

void Simulation::reset(const LinkPtr& link) {
  if (link->reset) return;
  link->reset = true;
  for (Side& side : link->sides)
    if (side.open)
      at(now_ + delay(), side.process, [link, &side] {
        if (!side.open) return;
        side.open = false;
        if (side.on_closed) side.on_closed();
      });
}

void Simulation::partition(const ProcessPtr& a, const ProcessPtr& b, Time for_long) {
  std::erase_if(partitions_, [this](const Partition& parting) { return parting.until < now_; });
  partitions_.push_back({a->pid, b->pid, now_ + for_long});
  if (for_long <= kKeepAlive) return;
  for (const auto& weak : a->links) {
    const LinkPtr link = weak.lock();
    if (!link || (link->sides[0].process != b && link->sides[1].process != b)) continue;
    at(now_ + kKeepAlive + random.between(0, kSecond), nullptr, [this, link] { reset(link); });
  }
}

}  // namespace esp::sim
