// How fast the links are: α seconds per message and β seconds per byte, for each kind of neighbour a group can have.
//
// Measured once per group, at the first call that needs to choose: the first pair of every tier plays ping-pong over a
// few sizes, a line is fitted, rank 0 hands the result to all, so that all choose alike. Sub-groups inherit it.
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

struct Link {
  double alpha = 0, beta = 0;  // s, s/B
};

struct Tiers {
  // Plausible values until measured: a thread, a process, a 10 Gbit/s network.
  std::array<Link, kNumTiers> links = {Link{1e-6, 1 / 8e9}, Link{2e-6, 1 / 5e9}, Link{30e-6, 1 / 1.2e9}};
  bool measured = false;

  const Link& at(Tier tier) const { return links[static_cast<size_t>(tier)]; }
};

// The slowest tier between any two members.
Tier widest_tier(const net::World& world, const net::Group& group);

// Collective. `tag` is that of the call that needs it, so that a rank in another call is told apart. The outcome is not
// `done` when the executor says so; `tiers` is then unchanged.
Executor::Outcome measure_tiers(const net::World& world, const net::Group& group, Executor& executor,
                                const net::Transport& transport, const net::Tag& tag, Deadline deadline, Tiers& tiers);

// Least squares of relative errors: seconds[i] ≈ α + bytes[i]·β, neither negative.
Link fit_link(std::span<const double> bytes, std::span<const double> seconds);

}  // namespace esp::comm
