// Fabric: a cluster's links in the engine: a port in and out of every processor for either tier, and in a two-tier
// network each leaf's share of the spine.
//
// Leaf–spine: the processors of `leaf_nodes` nodes share uplinks of 1/oversubscription of their ports. By default
// traffic spreads evenly over them (one wide link); with `hashed`, each pair of processors uses one uplink of a port's
// rate, selected by hash (ECMP), and pairs on the same uplink share it.
#pragma once

#include <map>

#include "esp/plan/cluster.h"
#include "esp/plan/simulate/collective.h"

namespace esp::plan {

struct FabricOptions {
  bool hashed = false;
  uint64_t seed = 1;
};

class Fabric {
 public:
  // Ports of the first `processors` of the cluster. Both outlive it.
  Fabric(EventEngine& engine, const Cluster& cluster, int processors, const FabricOptions& options = {});

  CollectivePorts::Way way(int from, int to);
  int node_of(int processor) const { return processor / cluster_.per_node; }
  int leaf_of(int processor) const;
  // The ports of a group of processors, for add_collective.
  CollectivePorts ports_of(const std::vector<int>& members);
  // Of one processor's tier: the time during which anything was on it.
  double busy_out(int processor, bool across) const;

 private:
  LinkId spine(int leaf, bool up, int from, int to);

  EventEngine& engine_;
  const Cluster& cluster_;
  const FabricOptions options_;
  std::vector<LinkId> inside_out_, inside_in_, across_out_, across_in_;
  std::vector<StreamId> out_, in_;
  std::map<std::pair<int, int>, LinkId> uplinks_;  // by leaf and number; down links have negative leaves
  std::map<std::pair<int, int>, RouteId> routes_;
};

}  // namespace esp::plan
