// What `auto` runs: the algorithm whose predicted time is least, from the cost of every row of the table with the α and
// β of the group's slowest tier. Pure and the same on every rank, since its inputs are.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/schedule.h"
#include "esp/comm/tiers.h"

namespace esp::comm {

struct Candidate {
  const AlgorithmRow* row = nullptr;
  double seconds = 0;
  std::string excluded;  // why it does not apply; empty: it does
};

// The rows of the problem's op: those that apply by predicted time (ties as in the table), then those that do not.
std::vector<Candidate> candidates(const Problem& problem, size_t element_bytes, const Link& link);

// UsageError when none applies.
const AlgorithmRow& choose(const Problem& problem, size_t element_bytes, const Link& link);

// Several lines: the link, then every candidate with its predicted time.
std::string explain_choice(const Problem& problem, size_t element_bytes, Tier tier, const Tiers& tiers);

// The grid a group forms: as given (checked against the size), else ranks per host × hosts when every host has equally
// many in a row, else flat.
Shape shape_of_group(const net::World& world, const net::Group& group, const std::vector<int>& given);

}  // namespace esp::comm
