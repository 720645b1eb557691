#include "esp/plan/network.h"

#include <algorithm>
#include <cmath>

namespace esp::plan {
namespace {

// Rate of a tree all-reduce / rate of a ring, as in NCCL's model: inner members send every byte twice and pipeline less
// well. The tree's advantage is its logarithmic depth.
constexpr double kTreeRate = 0.8;
// Latency of one tree level / latency of one ring step. A level waits until a chunk is received, summed and sent
// (measured: 380 µs for 1 MiB over four nodes).
constexpr double kTreeLevel = 10;
// Rate of an all-to-all / rate of a ring: it sends many small messages instead of few large ones.
constexpr double kExchangeRate = 0.75;

double inside_rate(const Cluster& c) {
  return c.inside.bandwidth * c.inside.efficiency;
}

// Bandwidth per processor between `domains` domains. An oversubscribed spine divides it.
double across_rate(const Cluster& c, double domains) {
  double rate = c.across.bandwidth * c.across.efficiency;
  const double nodes = domains * c.domain / std::max(c.per_node, 1);
  if (c.leaf_nodes > 0 && nodes > c.leaf_nodes) rate /= std::max(1.0, c.oversubscription);
  return rate;
}

double over(double bytes, double rate) {
  return rate > 0 ? bytes / rate : 0;
}

// Fixed time of one ring step: the latency of its slowest hop plus the lost bandwidth of short messages.
double step_s(const Cluster& c, const CollectiveGroup& g) {
  const LinkSpec& link = spans_domains(g) ? c.across : c.inside;
  return link.latency + over(link.half_bytes, link.bandwidth * link.efficiency);
}

double setup_s(const Cluster& c, const CollectiveGroup& g) {
  return spans_domains(g) ? std::max(c.inside.setup, c.across.setup) : c.inside.setup;
}

// Time of one pass of a ring over a buffer of `bytes` bytes: (n − 1) steps of bytes / n.
double ring_s(const Cluster& c, const CollectiveGroup& g, double bytes, double gain = 1) {
  double moving = g.inside > 1 ? over((g.size - 1) / g.size * bytes, inside_rate(c) * gain) : 0;
  if (spans_domains(g)) {
    const double wire = (g.domains - 1) / g.domains * bytes / g.inside;
    moving = std::max(moving, over(wire, across_rate(c, g.domains)));
  }
  // Short messages use flagged words (NCCL's LL protocol): half the rate, low latency. Long messages wait for complete
  // chunks.
  if (!spans_domains(g) && c.inside.bulk > 0)
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

bool spans_domains(const CollectiveGroup& group) {
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
  const bool summed = c.inside.in_network_sum && !spans_domains(g) && g.size > 4;
  double time = 2 * ring_s(c, g, bytes, summed ? c.inside.sum_gain : 1);
  if (spans_domains(g)) time = std::min(time, 2 * tree_s(c, g, bytes));
  return {2 * (g.size - 1) / g.size * bytes, setup_s(c, g) + time};
}

TransferTime all_gather(const Cluster& c, const CollectiveGroup& g, double bytes) {
  if (g.size <= 1 || bytes <= 0) return {};
  return {(g.size - 1) / g.size * bytes, setup_s(c, g) + ring_s(c, g, bytes)};
}

TransferTime all_to_all(const Cluster& c, const CollectiveGroup& g, double bytes) {
  if (g.size <= 1 || bytes <= 0) return {};
  double time = over((g.inside - 1) / g.size * bytes, inside_rate(c) * kExchangeRate);
  if (spans_domains(g))
    time = std::max(time, over((g.size - g.inside) / g.size * bytes, across_rate(c, g.domains) * kExchangeRate));
  return {(g.size - 1) / g.size * bytes, setup_s(c, g) + time + std::log2(g.size) * step_s(c, g)};
}

TransferTime broadcast(const Cluster& c, const CollectiveGroup& g, double bytes) {
  if (g.size <= 1 || bytes <= 0) return {};
  double time = over(bytes, inside_rate(c));
  // The message enters each domain once; the domain's network cards share it.
  if (spans_domains(g)) time = std::max(time, over(bytes / g.inside, across_rate(c, g.domains)));
  return {bytes, setup_s(c, g) + time + std::log2(g.size) * step_s(c, g)};
}

TransferTime send(const Cluster& c, double stride, double bytes) {
  if (bytes <= 0) return {};
  const bool inside = stride < c.domain;
  const LinkSpec& link = inside ? c.inside : c.across;
  return {bytes, link.latency + over(bytes, inside ? inside_rate(c) : across_rate(c, 2))};
}

}  // namespace esp::plan
