#include "esp/comm/simulate.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::comm {
namespace {

bool is_receive(const Action& action) {
  return action.act == Act::receive || action.act == Act::receive_reduce;
}

// A rank's memory as intervals with equal access history, each with the times that matter for the next access.
class Stretches {
 public:
  struct Range {
    uint32_t begin = 0, end = 0;
  };
  struct Stretch {
    int64_t written_ps = 0, read_ps = 0;
    int64_t last_send = -1;  // the last of this rank's sends that reads it; sends end in order
  };

  explicit Stretches(const Schedule& schedule) {
    auto note = [&](const BufferRegion& region) {
      auto& seams = seams_[static_cast<size_t>(region.buffer)];
      seams.push_back(region.offset);
      seams.push_back(region.offset + region.count);
    };
    for (const Action& action : schedule.actions) {
      note(action.region);
      for (const BufferRegion& source : action.sources) note(source);
    }
    for (size_t b = 0; b < 3; ++b) {
      std::sort(seams_[b].begin(), seams_[b].end());
      seams_[b].erase(std::unique(seams_[b].begin(), seams_[b].end()), seams_[b].end());
      base_[b] = static_cast<uint32_t>(stretches_.size());
      stretches_.resize(stretches_.size() + seams_[b].size());
    }
  }

  std::span<Stretch> of(const BufferRegion& region) {
    auto b = static_cast<size_t>(region.buffer);
    auto index = [&](size_t seam) {
      return static_cast<uint32_t>(std::lower_bound(seams_[b].begin(), seams_[b].end(), seam) - seams_[b].begin());
    };
    uint32_t begin = index(region.offset), end = region.count == 0 ? begin : index(region.offset + region.count);
    return std::span(stretches_).subspan(base_[b] + begin, end - begin);
  }

 private:
  std::vector<size_t> seams_[3];
  uint32_t base_[3];
  std::vector<Stretch> stretches_;
};

struct Send {
  int peer = 0;
  int64_t ready_ps = 0, end_ps = 0;
};

struct Rank {
  explicit Rank(const Schedule& schedule) : memory(schedule) {}
  Stretches memory;
  size_t next = 0;          // action
  size_t next_receive = 0;  // in `from`
  std::vector<Send> sends;
  std::vector<uint32_t> from;       // by receive: which send of its peer it takes
  size_t posted = 0, resolved = 0;  // of sends; a resolved one has its end
  int64_t out_free_ps = 0, in_free_ps = 0;
  int64_t heard_ps = 0;  // when the last message of no bytes came: later ones tell of it
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
        throw UsageError(
            fmt::format("rank {} waits forever in action {} (round {})", r, of(r).next, actions(r)[of(r).next].round));
    for (const SimulatedRank& rank : result_.ranks) result_.time_ps = std::max(result_.time_ps, rank.end_ps);
    return std::move(result_);
  }

 private:
  int size() const { return static_cast<int>(schedules_.size()); }
  Rank& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const std::vector<Action>& actions(int rank) const { return schedules_[static_cast<size_t>(rank)].actions; }

  void wake(int rank) {
    if (of(rank).queued) return;
    of(rank).queued = true;
    ready_.push_back(rank);
  }

  // The k-th receive from a peer takes its k-th send to us.
  void match() {
    std::unordered_map<uint64_t, std::vector<uint32_t>> wires;
    auto wire = [](int from, int to) { return static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to); };
    for (int r = 0; r < size(); ++r)
      for (const Action& action : actions(r)) {
        if (action.act != Act::send) continue;
        wires[wire(r, action.peer)].push_back(static_cast<uint32_t>(of(r).sends.size()));
        of(r).sends.push_back({action.peer, 0, 0});
      }
    for (int r = 0; r < size(); ++r) {
      std::unordered_map<int, size_t> taken;
      for (const Action& action : actions(r)) {
        if (!is_receive(action)) continue;
        auto& sent = wires[wire(action.peer, r)];
        size_t k = taken[action.peer]++;
        // No such send: a number none will reach, so that the rank is found waiting.
        of(r).from.push_back(k < sent.size() ? sent[k] : UINT32_MAX);
      }
    }
  }

  bool step(int rank, const Action& action) {
    if (action.act == Act::send) return post(rank, action);
    if (is_receive(action)) return receive(rank, action);
    return local(rank, action);
  }

  bool post(int rank, const Action& action) {
    Rank& mine = of(rank);
    Send& send = mine.sends[mine.posted];
    if (action.region.count == 0) send.ready_ps = mine.heard_ps;
    for (auto& stretch : mine.memory.of(action.region)) {
      send.ready_ps = std::max(send.ready_ps, stretch.written_ps);
      stretch.last_send = static_cast<int64_t>(mine.posted);
    }
    ++mine.posted;
    wake(action.peer);
    return true;
  }

  // When the region may be written; -1 while that depends on a send whose end is not known yet.
  int64_t writable(Rank& mine, const BufferRegion& region) {
    int64_t when = 0;
    for (const auto& stretch : mine.memory.of(region)) {
      if (stretch.last_send >= static_cast<int64_t>(mine.resolved)) return -1;
      when = std::max({when, stretch.written_ps, stretch.read_ps});
      if (stretch.last_send >= 0) when = std::max(when, mine.sends[static_cast<size_t>(stretch.last_send)].end_ps);
    }
    return when;
  }

  bool receive(int rank, const Action& action) {
    Rank &mine = of(rank), &theirs = of(action.peer);
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
    for (auto& stretch : mine.memory.of(action.region)) stretch.written_ps = end;
    if (bytes == 0) mine.heard_ps = std::max(mine.heard_ps, end);
    count(action.peer, rank, action.round, bytes, start, end);
    // Known to the sender from now on, and to the receiver of its next message.
    wake(action.peer);
    if (theirs.resolved < theirs.sends.size()) wake(theirs.sends[theirs.resolved].peer);
    return true;
  }

  bool local(int rank, const Action& action) {
    Rank& mine = of(rank);
    int64_t when = writable(mine, action.region);
    if (when < 0) return false;
    for (const BufferRegion& source : action.sources)
      for (const auto& stretch : mine.memory.of(source)) when = std::max(when, stretch.written_ps);
    for (const BufferRegion& source : action.sources)
      for (auto& stretch : mine.memory.of(source)) stretch.read_ps = std::max(stretch.read_ps, when);
    for (auto& stretch : mine.memory.of(action.region)) stretch.written_ps = when;
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
  std::vector<Rank> ranks_;
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
