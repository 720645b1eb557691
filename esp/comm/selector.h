// Algorithm selection for `auto`: the algorithm with the smallest predicted time. If all links are equal, the time
// comes from the cost formulas of the table. With several link tiers the schedules are simulated, because the formulas
// have only one α and β. Pure functions; the inputs are equal on all ranks, so the result is too.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/comm/tiers.h"

namespace esp::comm {

// The links between the members of a group, by group rank.
struct GroupLinks {
  Tier widest = Tier::process;
  bool equal = true;                       // true if all pairs of members are connected by the same tier, `widest`
  std::function<Tier(int a, int b)> tier;  // tier of a pair of members; used if `equal` is false
  Tiers tiers;

  const AlphaBeta& slowest() const { return tiers.at(widest); }
};
GroupLinks group_links(const net::World& world, const net::Group& group, const Tiers& tiers);

struct Candidate {
  const AlgorithmRow* row = nullptr;
  double seconds = 0;
  std::string excluded;  // the reason why the algorithm does not apply; empty: it applies
};

// The algorithms of the op: first those that apply, by predicted time (ties in table order), then those that do not.
std::vector<Candidate> candidates(const CollectiveSpec& spec, size_t element_bytes, const GroupLinks& links);

// Throws UsageError if no algorithm applies.
const AlgorithmRow& choose(const CollectiveSpec& spec, size_t element_bytes, const GroupLinks& links);

// Text of several lines: the links, then every candidate with its predicted time.
std::string explain_choice(const CollectiveSpec& spec, size_t element_bytes, const GroupLinks& links);

// Returns the grid of a group. A given shape is used after a check against the size. Otherwise the grid is ranks per
// host × hosts if every host holds equally many consecutive ranks. In all other cases there is no grid.
RankGrid grid_of_group(const net::World& world, const net::Group& group, const std::vector<int>& given);

}  // namespace esp::comm
