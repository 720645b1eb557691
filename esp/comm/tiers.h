// Link model: α seconds per message and β seconds per byte, for each tier of links in a group.
//
// The model is measured once per group, at the first call that must choose an algorithm. The first pair of members in
// every tier runs a ping-pong over a few sizes, and a line is fitted to the times. Rank 0 distributes the result, so
// that all ranks choose the same algorithm. Sub-groups inherit the model.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "esp/comm/executor.h"
#include "esp/net/world.h"

namespace esp::comm {

enum class Tier : int { process, host, network };
inline constexpr int kNumTiers = 3;
std::string_view name_of(Tier tier);
Tier tier_between(const net::World& world, int a, int b);  // a and b are world ranks

struct AlphaBeta {
  double alpha = 0, beta = 0;  // in s and s/B
};

struct Tiers {
  // Defaults until measured, for two threads, two processes and a 10 Gbit/s network.
  std::array<AlphaBeta, kNumTiers> links = {AlphaBeta{1e-6, 1 / 8e9}, AlphaBeta{2e-6, 1 / 5e9},
                                            AlphaBeta{30e-6, 1 / 1.2e9}};
  bool measured = false;

  const AlphaBeta& at(Tier tier) const { return links[static_cast<size_t>(tier)]; }
};

// The slowest tier between any two members.
Tier widest_tier(const net::World& world, const net::Group& group);

// Collective. Uses the tag of the call that triggers the measurement, so that a rank in a different call is detected.
// Sets `tiers` only if the returned status is `done`.
Executor::RunStatus measure_tiers(const net::World& world, const net::Group& group, Executor& executor,
                                  const net::Transport& transport, const net::Tag& tag, Deadline deadline,
                                  Tiers& tiers);

// Least-squares fit that minimises the relative errors: seconds[i] ≈ α + bytes[i]·β, with α and β >= 0.
AlphaBeta fit_alpha_beta(std::span<const double> bytes, std::span<const double> seconds);

}  // namespace esp::comm
