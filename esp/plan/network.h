// Time of one collective or transfer on a cluster with two tiers of links, from message size, group size and placement
// of the group.
//
// Ranks are numbered tensor first, then context, data and pipeline. In a group of n ranks that are `stride` apart, each
// domain of fast links has `inside` = min(n, domain / stride) members, so the group spans n / inside domains. A ring
// uses both tiers at once: its time is that of the slower tier plus a latency per step. The members in a node share its
// network cards equally.
#pragma once

#include "esp/plan/cluster.h"

namespace esp::plan {

struct CollectiveGroup {
  double size = 1, inside = 1, domains = 1;
};
CollectiveGroup group_of(const Cluster& cluster, double size, double stride);

// bytes: the most that one rank sends. The argument `bytes` of a collective is the whole buffer (gathered or reduced).
struct TransferTime {
  double bytes = 0, time_s = 0;
};
TransferTime all_reduce(const Cluster& cluster, const CollectiveGroup& group, double bytes);
TransferTime all_gather(const Cluster& cluster, const CollectiveGroup& group,
                        double bytes);  // a reduce-scatter takes the same time
TransferTime all_to_all(const Cluster& cluster, const CollectiveGroup& group,
                        double bytes);  // bytes of one rank's send buffer
// One member broadcasts `bytes` bytes to the others.
TransferTime broadcast(const Cluster& cluster, const CollectiveGroup& group, double bytes);
// A message of `bytes` bytes to the rank `stride` away. All ranks of a node send at the same time.
TransferTime send(const Cluster& cluster, double stride, double bytes);
bool spans_domains(const CollectiveGroup& group);

}  // namespace esp::plan
