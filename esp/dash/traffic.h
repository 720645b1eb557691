// Who sent how much to whom: the ranks' own counts (ranks/rank-K.json, one row per group, operation and algorithm), put
// on a map of rank by rank.
//
// A row says how many bytes a rank sent, not to whom. The group says who can have been meant (its name and the ranks'
// coordinates), and the algorithm how the bytes were shared among them: a schedule is data, so whoever has the table of
// algorithms can tell. `PeerShares` asks; without an answer the members of the group share alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "esp/base/json.h"

namespace esp::dash {

// What part of what member `rank` of `size` sends goes to each member; empty: not known.
using PeerShares =
    std::function<std::vector<double>(const std::string& op, const std::string& algorithm, int size, int rank)>;

struct TrafficTier {
  std::string name;           // the transport: "shm", "tcp"
  std::vector<double> bytes;  // [from * num_ranks + to]
};

struct TrafficRow {  // all ranks together
  std::string group, op, algorithm, transport;
  double calls = 0, bytes = 0, messages = 0, ms = 0;  // ms: of the rank that spent most
};

struct TrafficMap {
  size_t num_ranks = 0;  // 0: too many for a map
  std::vector<TrafficTier> tiers;
  std::vector<TrafficRow> rows;  // most bytes first
};

// The members of a group by its name («tensor», «pipe», «copies» …, as the mesh calls them), in the group's order.
std::vector<int> members_of(const std::vector<Json>& ranks, size_t of, const std::string& group);
TrafficMap traffic_of(const std::vector<Json>& ranks, const PeerShares& shares);
Json to_json(const TrafficMap& map);

}  // namespace esp::dash
