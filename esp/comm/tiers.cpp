#include "esp/comm/tiers.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace esp::comm {

using Outcome = Executor::RunStatus;

namespace {

constexpr size_t kSizes[] = {64, 8 << 10, 128 << 10, 1 << 20};
constexpr int kRounds[] = {24, 16, 8, 4};
// Measurement messages use the tag of the call, with step numbers that no schedule reaches.
constexpr uint32_t kFirstStep = 0xf0000000u;

class Measurement {
 public:
  Measurement(Executor& executor, const net::Transport& transport, const net::Tag& tag, Deadline deadline)
      : executor_(executor), transport_(transport), tag_(tag), deadline_(deadline) {}

  Outcome move(int peer, bool sends, void* data, size_t bytes, uint32_t step) {
    Executor::PeerMessage message;
    message.sends = sends;
    message.transfer.peer = peer;
    message.transfer.data = static_cast<std::byte*>(data);
    message.transfer.bytes = bytes;
    message.transfer.tag = tag_;
    message.transfer.tag.step = kFirstStep + step;
    return executor_.exchange({&message, 1}, deadline_);
  }

  // One side of the ping-pong. The side with `first` = true measures the time.
  Outcome ping_pong(int peer, bool first, AlphaBeta& link) {
    std::vector<std::byte> buffer(*std::max_element(std::begin(kSizes), std::end(kSizes)));
    std::vector<double> bytes, seconds;
    uint32_t step = 0;
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      double best = std::numeric_limits<double>::infinity();
      for (int round = 0; round < kRounds[i]; ++round, ++step) {
        double before = now();
        for (bool sends : {first, !first})
          if (Outcome outcome = move(peer, sends, buffer.data(), kSizes[i], step); outcome != Outcome::done)
            return outcome;
        best = std::min(best, (now() - before) / 2);
      }
      bytes.push_back(static_cast<double>(kSizes[i]));
      seconds.push_back(best);
    }
    if (first) link = fit_alpha_beta(bytes, seconds);
    return Outcome::done;
  }

 private:
  double now() const {
    return transport_.ordered() ? static_cast<double>(executor_.clock_ps()) * 1e-12
                                : static_cast<double>(now_ns()) * 1e-9;
  }

  Executor& executor_;
  const net::Transport& transport_;
  const net::Tag tag_;
  const Deadline deadline_;
};

// Group ranks of the first pair of members in a tier; {-1, -1} if there is none.
std::pair<int, int> first_pair(const net::World& world, const net::Group& group, Tier tier) {
  for (int a = 0; a < group.size(); ++a)
    for (int b = a + 1; b < group.size(); ++b)
      if (tier_between(world, group.members[static_cast<size_t>(a)], group.members[static_cast<size_t>(b)]) == tier)
        return {a, b};
  return {-1, -1};
}

}  // namespace

std::string_view name_of(Tier tier) {
  constexpr std::string_view kNames[] = {"same process", "same host", "across hosts"};
  return kNames[static_cast<int>(tier)];
}

Tier tier_between(const net::World& world, int a, int b) {
  if (!world.same_host(a, b)) return Tier::network;
  return world.same_process(a, b) ? Tier::process : Tier::host;
}

Tier widest_tier(const net::World& world, const net::Group& group) {
  Tier widest = Tier::process;
  for (int member : group.members) widest = std::max(widest, tier_between(world, group.members[0], member));
  return widest;
}

AlphaBeta fit_alpha_beta(std::span<const double> bytes, std::span<const double> seconds) {
  // The weight 1/t² makes the errors relative, so that small messages determine α and large ones β.
  double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    double t = std::max(seconds[i], 1e-12), weight = 1 / (t * t);
    w += weight;
    wx += weight * bytes[i];
    wxx += weight * bytes[i] * bytes[i];
    wt += weight * t;
    wxt += weight * bytes[i] * t;
  }
  double det = w * wxx - wx * wx;
  AlphaBeta link;
  link.beta = det > 0 ? (w * wxt - wx * wt) / det : 0;
  link.alpha = (wt - link.beta * wx) / w;
  if (link.alpha < 0) link = {0, wxt / wxx};
  if (link.beta < 0) link = {wt / w, 0};
  return link;
}

Outcome measure_tiers(const net::World& world, const net::Group& group, Executor& executor,
                      const net::Transport& transport, const net::Tag& tag, Deadline deadline, Tiers& tiers) {
  Measurement measurement(executor, transport, tag, deadline);
  Tiers found = tiers;
  constexpr uint32_t kCollect = 1000, kShare = 2000;
  for (int t = 0; t < kNumTiers; ++t) {
    auto [a, b] = first_pair(world, group, static_cast<Tier>(t));
    if (a < 0) continue;
    AlphaBeta& link = found.links[static_cast<size_t>(t)];
    Outcome outcome = Outcome::done;
    if (group.rank == a || group.rank == b)
      outcome = measurement.ping_pong(group.rank == a ? b : a, group.rank == a, link);
    if (outcome == Outcome::done && a != 0 && (group.rank == a || group.rank == 0))
      outcome = measurement.move(group.rank == a ? 0 : a, group.rank == a, &link, sizeof(link),
                                 kCollect + static_cast<uint32_t>(t));
    if (outcome != Outcome::done) return outcome;
  }
  for (int peer = 1; peer < group.size(); ++peer) {
    if (group.rank != 0 && group.rank != peer) continue;
    Outcome outcome =
        measurement.move(group.rank == 0 ? peer : 0, group.rank == 0, found.links.data(), sizeof(found.links), kShare);
    if (outcome != Outcome::done) return outcome;
  }
  tiers = found;
  tiers.measured = true;
  return Outcome::done;
}

}  // namespace esp::comm
