// Algorithm selection for `auto`: the smallest predicted time. With equal links the formulas of the table are used.
// With several tiers the schedules are simulated, because the formulas know only one α and β. Pure, and equal on all
// ranks because its inputs are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/comm/tiers.h"

namespace esp::comm {

// The links between the members of a group, by group rank.
struct Links {
  Tier widest = Tier::process;
  bool equal = true;                       // every pair is of the widest tier
  std::function<Tier(int a, int b)> tier;  // used when not equal
  Tiers tiers;

  const AlphaBeta& slowest() const { return tiers.at(widest); }
};
Links links_of(const net::World& world, const net::Group& group, const Tiers& tiers);

struct Candidate {
  const AlgorithmRow* row = nullptr;
  double seconds = 0;
  std::string excluded;  // reason it does not apply; empty: it applies
};

// The rows of the problem's op: those that apply by predicted time (ties as in the table), then those that do not.
std::vector<Candidate> candidates(const CollectiveSpec& spec, size_t element_bytes, const Links& links);

// UsageError when none applies.
const AlgorithmRow& choose(const CollectiveSpec& spec, size_t element_bytes, const Links& links);

// Several lines: the links, then every candidate with its predicted time.
std::string explain_choice(const CollectiveSpec& spec, size_t element_bytes, const Links& links);

// The grid of a group: as given (checked against the size); else ranks per host × hosts when every host holds equally
// many consecutive ranks; else flat.
RankGrid grid_of_group(const net::World& world, const net::Group& group, const std::vector<int>& given);

}  // namespace esp::comm
