// Link model: α seconds per message and β seconds per byte, for each tier of neighbours in a group.
//
// Measured once per group, at the first call that needs a choice: the first pair of every tier runs a ping-pong over a
// few sizes, a line is fitted, and rank 0 distributes the result, so that all ranks choose alike. Sub-groups inherit
// it.
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
Tier tier_between(const net::World& world, int a, int b);  // world ranks

struct AlphaBeta {
  double alpha = 0, beta = 0;  // s, s/B
};

struct Tiers {
  // Defaults until measured: a thread, a process, a 10 Gbit/s network.
  std::array<AlphaBeta, kNumTiers> links = {AlphaBeta{1e-6, 1 / 8e9}, AlphaBeta{2e-6, 1 / 5e9},
                                            AlphaBeta{30e-6, 1 / 1.2e9}};
  bool measured = false;

  const AlphaBeta& at(Tier tier) const { return links[static_cast<size_t>(tier)]; }
};

// The slowest tier between any two members.
Tier widest_tier(const net::World& world, const net::Group& group);

// Collective. `tag` is the tag of the call that needs it, so that a rank in another call is detected. Unless the status
// is `done`, `tiers` is unchanged.
Executor::RunStatus measure_tiers(const net::World& world, const net::Group& group, Executor& executor,
                                  const net::Transport& transport, const net::Tag& tag, Deadline deadline,
                                  Tiers& tiers);

// Least squares of relative errors: seconds[i] ≈ α + bytes[i]·β, neither negative.
AlphaBeta fit_alpha_beta(std::span<const double> bytes, std::span<const double> seconds);

}  // namespace esp::comm
