#include "esp/comm/simulate.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::comm {
namespace {

bool is_receive(const Action& action) {
  return action.type == ActionType::receive || action.type == ActionType::receive_reduce;
}

// When each interval of a rank's memory was last written, read and sent. An interval is a range with one access
// history.
class AccessTimes {
 public:
  struct Range {
    uint32_t begin = 0, end = 0;
  };
  struct Interval {
    int64_t written_ps = 0, read_ps = 0;
    // index of the last send of this rank that reads the interval; that send ends after all earlier ones
    int64_t last_send = -1;
  };

  explicit AccessTimes(const Schedule& schedule) {
    auto add_boundaries = [&](const BufferRegion& region) {
      auto& boundaries = boundaries_[static_cast<size_t>(region.buffer)];
      boundaries.push_back(region.offset);
      boundaries.push_back(region.offset + region.count);
    };
    for (const Action& action : schedule.actions) {
      add_boundaries(action.region);
      for (const BufferRegion& source : action.sources) add_boundaries(source);
    }
    for (size_t b = 0; b < 3; ++b) {
      std::sort(boundaries_[b].begin(), boundaries_[b].end());
      boundaries_[b].erase(std::unique(boundaries_[b].begin(), boundaries_[b].end()), boundaries_[b].end());
      base_[b] = static_cast<uint32_t>(intervals_.size());
      intervals_.resize(intervals_.size() + boundaries_[b].size());
    }
  }

  std::span<Interval> of(const BufferRegion& region) {
    auto b = static_cast<size_t>(region.buffer);
    auto index = [&](size_t boundary) {
      return static_cast<uint32_t>(std::lower_bound(boundaries_[b].begin(), boundaries_[b].end(), boundary) -
                                   boundaries_[b].begin());
    };
    uint32_t begin = index(region.offset), end = region.count == 0 ? begin : index(region.offset + region.count);
    return std::span(intervals_).subspan(base_[b] + begin, end - begin);
  }

 private:
  std::vector<size_t> boundaries_[3];
  uint32_t base_[3];
  std::vector<Interval> intervals_;
};

struct Send {
  int peer = 0;
  int64_t ready_ps = 0, end_ps = 0;
};

struct RankState {
  explicit RankState(const Schedule& schedule) : memory(schedule) {}
  AccessTimes memory;
  size_t next = 0;          // index of the next action
  size_t next_receive = 0;  // index in `from`
  std::vector<Send> sends;
  std::vector<uint32_t> from;       // for each receive: index of the peer's send that it matches
  size_t posted = 0, resolved = 0;  // number of sends that are posted, and of sends whose end time is known
  int64_t out_free_ps = 0, in_free_ps = 0;
  int64_t signal_ps = 0;  // arrival of the last zero-byte message; later zero-byte messages must not start earlier
  bool queued = false;
};

class Simulation {
 public:
  Simulation(std::span<const Schedule> schedules, size_t element_bytes, const LinkCosts& cost, bool keep_messages)
      : schedules_(schedules), unit_(element_bytes), cost_(cost), keep_messages_(keep_messages) {
    for (const Schedule& schedule : schedules) ranks_.emplace_back(schedule);
    result_.ranks.resize(schedules.size());
    result_.num_rounds = schedules.empty() ? 0 : schedules[0].num_rounds;
    match();
  }

  SimulationResult run() {
    for (int r = 0; r < size(); ++r) wake(r);
    while (!ready_.empty()) {
      int rank = ready_.back();
      ready_.pop_back();
      of(rank).queued = false;
      while (of(rank).next < actions(rank).size() && step(rank, actions(rank)[of(rank).next])) ++of(rank).next;
    }
    for (int r = 0; r < size(); ++r)
      if (of(r).next < actions(r).size())
        throw UsageError(fmt::format("the schedules deadlock: rank {} waits forever in action {} (round {})", r,
                                     of(r).next, actions(r)[of(r).next].round));
    for (const SimulatedRank& rank : result_.ranks) result_.time_ps = std::max(result_.time_ps, rank.end_ps);
    return std::move(result_);
  }

 private:
  int size() const { return static_cast<int>(schedules_.size()); }
  RankState& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const std::vector<Action>& actions(int rank) const { return schedules_[static_cast<size_t>(rank)].actions; }

  void wake(int rank) {
    if (of(rank).queued) return;
    of(rank).queued = true;
    ready_.push_back(rank);
  }

  // Matches the k-th receive from a peer with the peer's k-th send to this rank.
  void match() {
    std::unordered_map<uint64_t, std::vector<uint32_t>> channels;
    auto channel = [](int from, int to) { return static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to); };
    for (int r = 0; r < size(); ++r)
      for (const Action& action : actions(r)) {
        if (action.type != ActionType::send) continue;
        channels[channel(r, action.peer)].push_back(static_cast<uint32_t>(of(r).sends.size()));
        of(r).sends.push_back({action.peer, 0, 0});
      }
    for (int r = 0; r < size(); ++r) {
      std::unordered_map<int, size_t> taken;
      for (const Action& action : actions(r)) {
        if (!is_receive(action)) continue;
        auto& sent = channels[channel(action.peer, r)];
        size_t k = taken[action.peer]++;
        // If the peer has no such send, UINT32_MAX makes the rank wait forever, which is reported as a deadlock.
        of(r).from.push_back(k < sent.size() ? sent[k] : UINT32_MAX);
      }
    }
  }

  bool step(int rank, const Action& action) {
    if (action.type == ActionType::send) return post(rank, action);
    if (is_receive(action)) return receive(rank, action);
    return local(rank, action);
  }

  bool post(int rank, const Action& action) {
    RankState& mine = of(rank);
    Send& send = mine.sends[mine.posted];
    if (action.region.count == 0) send.ready_ps = mine.signal_ps;
    for (auto& interval : mine.memory.of(action.region)) {
      send.ready_ps = std::max(send.ready_ps, interval.written_ps);
      interval.last_send = static_cast<int64_t>(mine.posted);
    }
    ++mine.posted;
    wake(action.peer);
    return true;
  }

  // Returns the time from which the region may be written, or -1 as long as a send with an unknown end time reads it.
  int64_t writable(RankState& mine, const BufferRegion& region) {
    int64_t when = 0;
    for (const auto& interval : mine.memory.of(region)) {
      if (interval.last_send >= static_cast<int64_t>(mine.resolved)) return -1;
      when = std::max({when, interval.written_ps, interval.read_ps});
      if (interval.last_send >= 0) when = std::max(when, mine.sends[static_cast<size_t>(interval.last_send)].end_ps);
    }
    return when;
  }

  bool receive(int rank, const Action& action) {
    RankState &mine = of(rank), &theirs = of(action.peer);
    uint32_t index = mine.from[mine.next_receive];
    if (theirs.posted <= index || theirs.resolved < index) return false;
    int64_t ready = writable(mine, action.region);
    if (ready < 0) return false;
    Send& send = theirs.sends[index];
    size_t bytes = action.region.count * unit_;
    net::LinkCost link = cost_(action.peer, rank);
    int64_t start = std::max({ready, send.ready_ps, theirs.out_free_ps, mine.in_free_ps});
    int64_t end = start + link.alpha_ps + static_cast<int64_t>(bytes) * link.beta_ps_per_byte;
    send.end_ps = theirs.out_free_ps = mine.in_free_ps = end;
    ++theirs.resolved;
    ++mine.next_receive;
    for (auto& interval : mine.memory.of(action.region)) interval.written_ps = end;
    if (bytes == 0) mine.signal_ps = std::max(mine.signal_ps, end);
    count(action.peer, rank, action.round, bytes, start, end);
    // The end time is now known. This may unblock the sender, and the receiver of the sender's next message.
    wake(action.peer);
    if (theirs.resolved < theirs.sends.size()) wake(theirs.sends[theirs.resolved].peer);
    return true;
  }

  bool local(int rank, const Action& action) {
    RankState& mine = of(rank);
    int64_t when = writable(mine, action.region);
    if (when < 0) return false;
    for (const BufferRegion& source : action.sources)
      for (const auto& interval : mine.memory.of(source)) when = std::max(when, interval.written_ps);
    for (const BufferRegion& source : action.sources)
      for (auto& interval : mine.memory.of(source)) interval.read_ps = std::max(interval.read_ps, when);
    for (auto& interval : mine.memory.of(action.region)) interval.written_ps = when;
    return true;
  }

  void count(int from, int to, int round, size_t bytes, int64_t start, int64_t end) {
    SimulatedRank &sender = result_.ranks[static_cast<size_t>(from)],
                  &receiver = result_.ranks[static_cast<size_t>(to)];
    sender.bytes_sent += bytes;
    ++sender.messages_sent;
    sender.end_ps = std::max(sender.end_ps, end);
    receiver.bytes_received += bytes;
    ++receiver.messages_received;
    receiver.end_ps = std::max(receiver.end_ps, end);
    ++result_.num_messages;
    if (keep_messages_) result_.messages.push_back({round, from, to, bytes, start, end});
  }

  std::span<const Schedule> schedules_;
  const size_t unit_;
  const LinkCosts& cost_;
  const bool keep_messages_;
  std::vector<RankState> ranks_;
  std::vector<int> ready_;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(std::span<const Schedule> schedules, size_t element_bytes, const LinkCosts& cost,
                          bool keep_messages) {
  return Simulation(schedules, element_bytes, cost, keep_messages).run();
}

SimulationResult simulate(std::span<const Schedule> schedules, size_t element_bytes, net::LinkCost cost) {
  return simulate(schedules, element_bytes, [cost](int, int) { return cost; });
}

}  // namespace esp::comm
