#include "esp/net/virtual/network.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::net {
namespace {

int64_t sum(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) throw UsageError("virtual time exceeds 106 days (64-bit picoseconds)");
  return result;
}

}  // namespace

VirtualNetwork::VirtualNetwork(int size, std::vector<LinkCost> tiers, std::function<int(int, int)> tier_of,
                               std::function<int(int)> node_of)
    : tiers_(std::move(tiers)),
      tier_of_(std::move(tier_of)),
      node_of_(std::move(node_of)),
      ports_(static_cast<size_t>(std::max(size, 0))) {
  if (size < 1) throw UsageError(fmt::format("virtual network: got {} ranks; expected at least 1", size));
  for (const LinkCost& tier : tiers_)
    if (tier.alpha_ps < 0 || tier.beta_ps_per_byte < 0)
      throw UsageError(
          fmt::format("link cost: got alpha {} ps, beta {} ps/B; expected >= 0", tier.alpha_ps, tier.beta_ps_per_byte));
}

std::shared_ptr<VirtualNetwork> VirtualNetwork::flat(int size, LinkCost cost) {
  return nodes(size, std::max(size, 1), cost, cost);
}

std::shared_ptr<VirtualNetwork> VirtualNetwork::nodes(int size, int ranks_per_node, LinkCost inside, LinkCost across) {
  if (ranks_per_node < 1) throw UsageError(fmt::format("ranks per node: got {}; expected at least 1", ranks_per_node));
  auto node_of = [ranks_per_node](int rank) { return rank / ranks_per_node; };
  auto tier_of = [node_of](int a, int b) { return node_of(a) == node_of(b) ? 0 : 1; };
  return std::make_shared<VirtualNetwork>(size, std::vector<LinkCost>{inside, across}, tier_of, node_of);
}

int64_t VirtualNetwork::cost_ps(int from, int to, size_t bytes) const {
  int tier = tier_of_(from, to);
  ESP_CHECK(tier >= 0 && static_cast<size_t>(tier) < tiers_.size(), "link tier: got {}; expected less than {}", tier,
            tiers_.size());
  const LinkCost& cost = tiers_[static_cast<size_t>(tier)];
  int64_t moving = 0;
  if (__builtin_mul_overflow(cost.beta_ps_per_byte, bytes, &moving))
    throw UsageError(fmt::format("virtual time overflows: {} bytes at {} ps each", bytes, cost.beta_ps_per_byte));
  return sum(cost.alpha_ps, moving);
}

int64_t VirtualNetwork::carry(int from, int to, size_t bytes, int64_t ready_ps) {
  int64_t cost = cost_ps(from, to, bytes);
  std::lock_guard lock(mutex_);
  int64_t& out = ports_[static_cast<size_t>(from)].out_free_ps;
  int64_t& in = ports_[static_cast<size_t>(to)].in_free_ps;
  int64_t end = sum(std::max({ready_ps, out, in}), cost);
  out = in = end;
  return end;
}

void VirtualNetwork::finished(int rank, int64_t end_ps) {
  std::lock_guard lock(mutex_);
  int64_t& clock = ports_[static_cast<size_t>(rank)].clock_ps;
  clock = std::max(clock, end_ps);
}

int64_t VirtualNetwork::clock_ps(int rank) const {
  std::lock_guard lock(mutex_);
  return ports_[static_cast<size_t>(rank)].clock_ps;
}

int64_t VirtualNetwork::job_ps() const {
  std::lock_guard lock(mutex_);
  int64_t latest = 0;
  for (const Ports& ports : ports_) latest = std::max(latest, ports.clock_ps);
  return latest;
}

}  // namespace esp::net
