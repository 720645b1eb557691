// Traffic matrix: bytes sent from rank to rank. It is computed from the counters of ranks (ranks/rank-K.json has one
// row per group, operation and algorithm).
//
// A row has the number of bytes that a rank sent, but not to which peers. The group (its name and the coordinates of
// ranks) gives the possible peers. `PeerShares` gives the distribution over them, from the algorithm's schedule.
// Without it, the bytes are distributed evenly over the group.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "esp/base/json.h"

namespace esp::dash {

// How member `rank` of a group of `size` ranks distributes its sent bytes: a fraction for each member. Empty: unknown.
using PeerShares =
    std::function<std::vector<double>(const std::string& op, const std::string& algorithm, int size, int rank)>;

struct TransportTraffic {
  std::string name;           // name of the transport: "shm", "tcp"
  std::vector<double> bytes;  // indexed by from * num_ranks + to
};

struct TrafficRow {  // totals over all ranks
  std::string group, op, algorithm, transport;
  double calls = 0, bytes = 0, messages = 0, ms = 0;  // bytes, messages: sums; calls, ms: maxima
};

struct TrafficMap {
  size_t num_ranks = 0;  // 0: too many ranks for a matrix
  std::vector<TransportTraffic> tiers;
  std::vector<TrafficRow> rows;  // ordered by bytes, largest first
};

// Ranks of the group to which rank `of` belongs, in the group's order. Group names are those of the mesh: «tensor»,
// «pipe», «copies» (data-parallel replicas) …
std::vector<int> group_members(const std::vector<Json>& ranks, size_t of, const std::string& group);
TrafficMap build_traffic_map(const std::vector<Json>& ranks, const PeerShares& shares);
Json to_json(const TrafficMap& map);

}  // namespace esp::dash
