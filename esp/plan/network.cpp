#include "esp/plan/network.h"

#include <algorithm>
#include <cmath>

namespace esp::plan {
namespace {

// Trees send every byte twice through inner members and pipeline less well than a ring, but have logarithmic depth.
// NCCL's model gives them about this fraction of the ring's rate.
constexpr double kTreeRate = 0.8;
// A tree level waits until a chunk is received, summed and sent: as long as this many ring steps (380 µs for 1 MiB over
// four nodes, measured).
constexpr double kTreeLevel = 10;
// Overhead of an all-to-all's many small messages over a ring's few.
constexpr double kExchangeRate = 0.75;

double inside_rate(const Cluster& c) {
  return c.inside.bandwidth * c.inside.efficiency;
}

// Per processor, between domains: the spine divides the leaf bandwidth.
double across_rate(const Cluster& c, double domains) {
  double rate = c.across.bandwidth * c.across.efficiency;
  const double nodes = domains * c.domain / std::max(c.per_node, 1);
  if (c.leaf_nodes > 0 && nodes > c.leaf_nodes) rate /= std::max(1.0, c.oversubscription);
  return rate;
}

double over(double bytes, double rate) {
  return rate > 0 ? bytes / rate : 0;
}

// Fixed cost of a step: its slowest hop, and the loss of short messages.
double step_s(const Cluster& c, const CollectiveGroup& g) {
  const LinkSpec& link = crosses(g) ? c.across : c.inside;
  return link.latency + over(link.half_bytes, link.bandwidth * link.efficiency);
}

double setup_s(const Cluster& c, const CollectiveGroup& g) {
  return crosses(g) ? std::max(c.inside.setup, c.across.setup) : c.inside.setup;
}

// One pass of a ring over `bytes`: (n−1) steps of S/n.
double ring_s(const Cluster& c, const CollectiveGroup& g, double bytes, double gain = 1) {
  double moving = g.inside > 1 ? over((g.size - 1) / g.size * bytes, inside_rate(c) * gain) : 0;
  if (crosses(g)) {
    const double wire = (g.domains - 1) / g.domains * bytes / g.inside;
    moving = std::max(moving, over(wire, across_rate(c, g.domains)));
  }
  // Short messages use flagged words (LL) at half the rate, long ones wait for whole chunks.
  if (!crosses(g) && c.inside.bulk > 0)
    return std::min(2 * moving + (g.size - 1) * step_s(c, g), moving + (g.size - 1) * c.inside.bulk);
  return moving + (g.size - 1) * step_s(c, g);
}

double tree_s(const Cluster& c, const CollectiveGroup& g, double bytes) {
  const double levels = std::log2(g.domains);
  double moving = over((g.inside - 1) / g.inside * bytes, inside_rate(c));
  moving = std::max(moving, over(bytes / g.inside, across_rate(c, g.domains) * kTreeRate));
  return moving + levels * kTreeLevel * c.across.latency + (g.inside - 1) * c.inside.latency;
}

}  // namespace

bool crosses(const CollectiveGroup& group) {
  return group.domains > 1;
}

CollectiveGroup group_of(const Cluster& cluster, double size, double stride) {
  CollectiveGroup g;
  g.size = std::max(1.0, size);
  const double room = std::max(1.0, std::floor(cluster.domain / std::max(1.0, stride)));
  g.inside = std::min(g.size, room);
  g.domains = std::ceil(g.size / g.inside);
  return g;
}

TransferTime all_reduce(const Cluster& c, const CollectiveGroup& g, double bytes) {
  if (g.size <= 1 || bytes <= 0) return {};
  const bool summed = c.inside.in_network_sum && !crosses(g) && g.size > 4;
  double time = 2 * ring_s(c, g, bytes, summed ? c.inside.sum_gain : 1);
  if (crosses(g)) time = std::min(time, 2 * tree_s(c, g, bytes));
  return {2 * (g.size - 1) / g.size * bytes, setup_s(c, g) + time};
}

TransferTime all_gather(const Cluster& c, const CollectiveGroup& g, double bytes) {
  if (g.size <= 1 || bytes <= 0) return {};
  return {(g.size - 1) / g.size * bytes, setup_s(c, g) + ring_s(c, g, bytes)};
}

TransferTime all_to_all(const Cluster& c, const CollectiveGroup& g, double bytes) {
  if (g.size <= 1 || bytes <= 0) return {};
  double time = over((g.inside - 1) / g.size * bytes, inside_rate(c) * kExchangeRate);
  if (crosses(g))
    time = std::max(time, over((g.size - g.inside) / g.size * bytes, across_rate(c, g.domains) * kExchangeRate));
  return {(g.size - 1) / g.size * bytes, setup_s(c, g) + time + std::log2(g.size) * step_s(c, g)};
}

TransferTime broadcast(const Cluster& c, const CollectiveGroup& g, double bytes) {
  if (g.size <= 1 || bytes <= 0) return {};
  double time = over(bytes, inside_rate(c));
  // The message enters each domain once, over all its network cards.
  if (crosses(g)) time = std::max(time, over(bytes / g.inside, across_rate(c, g.domains)));
  return {bytes, setup_s(c, g) + time + std::log2(g.size) * step_s(c, g)};
}

TransferTime send(const Cluster& c, double stride, double bytes) {
  if (bytes <= 0) return {};
  const bool inside = stride < c.domain;
  const LinkSpec& link = inside ? c.inside : c.across;
  return {bytes, link.latency + over(bytes, inside ? inside_rate(c) : across_rate(c, 2))};
}

}  // namespace esp::plan
