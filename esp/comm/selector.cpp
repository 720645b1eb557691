#include "esp/comm/selector.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"

namespace esp::comm {

std::vector<Candidate> candidates(const Problem& problem, size_t element_bytes, const Link& link) {
  std::vector<Candidate> found;
  for (const AlgorithmRow* row : algorithms_for(problem.op)) {
    Candidate candidate{row, 0, row->applies ? row->applies(problem) : ""};
    if (candidate.excluded.empty()) candidate.seconds = row->cost(problem, element_bytes, link.alpha, link.beta);
    found.push_back(std::move(candidate));
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    if (a.excluded.empty() != b.excluded.empty()) return a.excluded.empty();
    return a.seconds < b.seconds;
  });
  return found;
}

const AlgorithmRow& choose(const Problem& problem, size_t element_bytes, const Link& link) {
  auto sorted = candidates(problem, element_bytes, link);
  if (sorted.empty() || !sorted.front().excluded.empty())
    throw UsageError(fmt::format("no algorithm for {} of {} elements among {} ranks", name_of(problem.op),
                                 problem.count, problem.size));
  return *sorted.front().row;
}

std::string explain_choice(const Problem& problem, size_t element_bytes, Tier tier, const Tiers& tiers) {
  const Link& link = tiers.at(tier);
  std::string text =
      fmt::format("{} of {} B among {} ranks, {}: alpha {:.3g} us, {:.3g} GB/s ({})", name_of(problem.op),
                  problem.count * element_bytes, problem.size, name_of(tier), link.alpha * 1e6,
                  link.beta > 0 ? 1e-9 / link.beta : 0, tiers.measured ? "measured" : "assumed until measured");
  bool first = true;
  for (const Candidate& candidate : candidates(problem, element_bytes, link)) {
    if (!candidate.excluded.empty()) {
      text += fmt::format("\n    {:<22} does not apply: {}", candidate.row->name, candidate.excluded);
      continue;
    }
    text += fmt::format("\n  {} {:<22} {:.3f} us", first ? "*" : " ", candidate.row->name, candidate.seconds * 1e6);
    first = false;
  }
  return text;
}

Shape shape_of_group(const net::World& world, const net::Group& group, const std::vector<int>& given) {
  int size = group.size();
  if (!given.empty()) {
    int product = 1;
    for (int dim : given) {
      if (dim < 1) throw UsageError(fmt::format("shape {}: every axis has at least one rank", fmt::join(given, "x")));
      product *= dim;
    }
    if (product != size)
      throw UsageError(fmt::format("shape {} holds {} ranks; the group has {}", fmt::join(given, "x"), product, size));
    return {given};
  }
  auto host = [&](int rank) -> const std::string& {
    return world.peers[static_cast<size_t>(group.members[static_cast<size_t>(rank)])].host;
  };
  int per_host = 1;
  while (per_host < size && host(per_host) == host(0)) per_host++;
  if (per_host == size || size % per_host != 0) return {};
  std::vector<std::string> seen;
  for (int first = 0; first < size; first += per_host) {
    for (int rank = first; rank < first + per_host; ++rank)
      if (host(rank) != host(first)) return {};
    if (std::find(seen.begin(), seen.end(), host(first)) != seen.end()) return {};
    seen.push_back(host(first));
  }
  return {{per_host, size / per_host}};
}

}  // namespace esp::comm
