// Time of one collective or transfer on a cluster of two tiers, from the size of its message, of its group and where
// the group's members sit.
//
// Ranks are laid out tensor first, then context, data and pipeline; a group of n ranks `stride` apart has
// `inside` = min(n, domain / stride) members in each domain of fast links and spans n / inside of those. Rings run both
// tiers at once, so a collective takes the slower one's time plus a latency per step; all members of a node use its
// network cards together, each with its share.
#pragma once

#include "esp/plan/cluster.h"

namespace esp::plan {

struct Group {
  double size = 1, inside = 1, domains = 1;
};
Group group_of(const Cluster& cluster, double size, double stride);

// What each rank sends at most, and how long it takes. S is always the whole buffer (gathered, or reduced).
struct Transfer {
  double bytes = 0, time_s = 0;
};
Transfer all_reduce(const Cluster& cluster, const Group& group, double bytes);
Transfer all_gather(const Cluster& cluster, const Group& group, double bytes);  // a reduce-scatter costs the same
Transfer all_to_all(const Cluster& cluster, const Group& group, double bytes);  // bytes of one rank's send buffer
// One broadcast of `bytes` from one member.
Transfer broadcast(const Cluster& cluster, const Group& group, double bytes);
// To a rank `stride` away; every rank of a node does so at once.
Transfer send(const Cluster& cluster, double stride, double bytes);
bool crosses(const Group& group);

}  // namespace esp::plan
