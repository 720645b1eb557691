// Fabric: the links of a cluster in the event engine. Every processor has an input port and an output port for each
// tier. In a two-tier network, the nodes of a leaf share its uplinks to the spine.
//
// Leaf–spine: the uplinks of `leaf_nodes` nodes have 1/oversubscription of the bandwidth of the nodes' ports. By
// default traffic spreads evenly over the uplinks (modelled as one wide link). With `hashed`, a hash assigns each pair
// of processors to one uplink with the rate of a port (ECMP); pairs on the same uplink share it.
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
  // Adds the ports of the cluster's first `processors` processors. The engine and the cluster must outlive the Fabric.
  Fabric(EventEngine& engine, const Cluster& cluster, int processors, const FabricOptions& options = {});

  CollectivePorts::LinkPath path(int from, int to);
  int node_of(int processor) const { return processor / cluster_.per_node; }
  int leaf_of(int processor) const;
  // The ports of a group of processors, as add_collective() needs them.
  CollectivePorts ports_of(const std::vector<int>& members);
  // Seconds in which this processor's output port of the tier sent data.
  double busy_out(int processor, bool across) const;

 private:
  LinkId spine(int leaf, bool up, int from, int to);

  EventEngine& engine_;
  const Cluster& cluster_;
  const FabricOptions options_;
  std::vector<LinkId> inside_out_, inside_in_, across_out_, across_in_;
  std::vector<StreamId> out_, in_;
  // key: (leaf, number of the uplink); downlinks have negative leaf numbers
  std::map<std::pair<int, int>, LinkId> uplinks_;
  std::map<std::pair<int, int>, RouteId> routes_;
};

}  // namespace esp::plan
