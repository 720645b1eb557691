// Time of one collective or transfer on a cluster of two tiers, by message size, group size and placement of the group.
//
// Ranks are laid out tensor first, then context, data and pipeline; a group of n ranks `stride` apart has `inside` =
// min(n, domain / stride) members in each domain of fast links and spans n / inside of those. Rings use both tiers at
// once, so a collective takes the time of the slower one plus a latency per step; all members of a node use its network
// cards together, each with its share.
#pragma once

#include "esp/plan/cluster.h"

namespace esp::plan {

struct CollectiveGroup {
  double size = 1, inside = 1, domains = 1;
};
CollectiveGroup group_of(const Cluster& cluster, double size, double stride);

// Bytes that each rank sends at most, and the time. S is always the whole buffer (gathered, or reduced).
struct TransferTime {
  double bytes = 0, time_s = 0;
};
TransferTime all_reduce(const Cluster& cluster, const CollectiveGroup& group, double bytes);
TransferTime all_gather(const Cluster& cluster, const CollectiveGroup& group,
                        double bytes);  // a reduce-scatter costs the same
TransferTime all_to_all(const Cluster& cluster, const CollectiveGroup& group,
                        double bytes);  // bytes of one rank's send buffer
// One broadcast of `bytes` from one member.
TransferTime broadcast(const Cluster& cluster, const CollectiveGroup& group, double bytes);
// To a rank `stride` away, from every rank of a node at once.
TransferTime send(const Cluster& cluster, double stride, double bytes);
bool crosses(const CollectiveGroup& group);

}  // namespace esp::plan
