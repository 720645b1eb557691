#include "esp/plan/simulate/fabric.h"

#include <algorithm>

#include "esp/base/rng.h"

namespace esp::plan {
namespace {

double rate(const LinkSpec& link) {
  // a missing bandwidth becomes a rate near 0, because a link needs a rate > 0
  return std::max(1e-9, link.bandwidth * link.efficiency);
}

// Latency of a hop including the loss of short messages: a hop of x bytes takes α + (x + half_bytes) / rate.
double alpha(const LinkSpec& link) {
  return link.latency + link.half_bytes / rate(link);
}

}  // namespace

Fabric::Fabric(EventEngine& engine, const Cluster& cluster, int processors, const FabricOptions& options)
    : engine_(engine), cluster_(cluster), options_(options) {
  for (int i = 0; i < processors; ++i) {
    inside_out_.push_back(engine.add_link(rate(cluster.inside)));
    inside_in_.push_back(engine.add_link(rate(cluster.inside)));
    across_out_.push_back(engine.add_link(rate(cluster.across)));
    across_in_.push_back(engine.add_link(rate(cluster.across)));
    out_.push_back(engine.add_stream());
    in_.push_back(engine.add_stream());
  }
}

int Fabric::leaf_of(int processor) const {
  return cluster_.leaf_nodes > 0 ? node_of(processor) / cluster_.leaf_nodes : 0;
}

LinkId Fabric::spine(int leaf, bool up, int from, int to) {
  const double ports = static_cast<double>(cluster_.leaf_nodes) * cluster_.per_node;
  const double share = std::max(1.0, cluster_.oversubscription);
  int number = 0;
  double capacity = rate(cluster_.across) * ports / share;
  if (options_.hashed) {
    const auto count = static_cast<uint64_t>(std::max(1.0, ports / share));
    const auto pair = static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to);
    number = static_cast<int>(random_bits(options_.seed, up ? 1 : 2, pair) % count);
    capacity = rate(cluster_.across);
  }
  const int key = up ? leaf : -1 - leaf;
  const auto found = uplinks_.find({key, number});
  if (found != uplinks_.end()) return found->second;
  return uplinks_[{key, number}] = engine_.add_link(capacity);
}

CollectivePorts::LinkPath Fabric::path(int from, int to) {
  const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
  const bool near = from / cluster_.domain == to / cluster_.domain;
  const double wait = alpha(near ? cluster_.inside : cluster_.across);
  if (const auto known = routes_.find({from, to}); known != routes_.end()) return {known->second, wait};
  std::vector<LinkId> links;
  if (near) {
    links = {inside_out_[a], inside_in_[b]};
  } else {
    links = {across_out_[a], across_in_[b]};
    if (leaf_of(from) != leaf_of(to)) {
      links.push_back(spine(leaf_of(from), true, from, to));
      links.push_back(spine(leaf_of(to), false, from, to));
    }
  }
  return {routes_[{from, to}] = engine_.add_route(std::move(links)), wait};
}

CollectivePorts Fabric::ports_of(const std::vector<int>& members) {
  CollectivePorts ports;
  for (const int member : members) {
    ports.out.push_back(out_[static_cast<size_t>(member)]);
    ports.in.push_back(in_[static_cast<size_t>(member)]);
  }
  ports.path = [this, members](int from, int to) {
    return path(members[static_cast<size_t>(from)], members[static_cast<size_t>(to)]);
  };
  return ports;
}

double Fabric::busy_out(int processor, bool across) const {
  return engine_.link_busy_time((across ? across_out_ : inside_out_)[static_cast<size_t>(processor)]);
}

}  // namespace esp::plan
