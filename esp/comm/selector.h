// What `auto` runs: the algorithm whose predicted time is least. Among equal links by the formula of its row of the
// table; in a group of several tiers by simulating its schedules, since the formulas know one α and β only. Pure and
// the same on every rank, since its inputs are.
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
  std::function<Tier(int a, int b)> tier;  // asked when they are not
  Tiers tiers;

  const Link& slowest() const { return tiers.at(widest); }
};
Links links_of(const net::World& world, const net::Group& group, const Tiers& tiers);

struct Candidate {
  const AlgorithmRow* row = nullptr;
  double seconds = 0;
  std::string excluded;  // why it does not apply; empty: it does
};

// The rows of the problem's op: those that apply by predicted time (ties as in the table), then those that do not.
std::vector<Candidate> candidates(const Problem& problem, size_t element_bytes, const Links& links);

// UsageError when none applies.
const AlgorithmRow& choose(const Problem& problem, size_t element_bytes, const Links& links);

// Several lines: the links, then every candidate with its predicted time.
std::string explain_choice(const Problem& problem, size_t element_bytes, const Links& links);

// The grid a group forms: as given (checked against the size), else ranks per host × hosts when every host has equally
// many in a row, else flat.
Shape shape_of_group(const net::World& world, const net::Group& group, const std::vector<int>& given);

}  // namespace esp::comm
