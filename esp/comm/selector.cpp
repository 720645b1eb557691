#include "esp/comm/selector.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/simulate.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

net::LinkCost in_picoseconds(const AlphaBeta& link) {
  return {std::llround(link.alpha * 1e12), std::llround(link.beta * 1e12)};
}

double predict(const AlgorithmRow& row, const CollectiveSpec& spec, size_t element_bytes, const GroupLinks& links) {
  const AlphaBeta& slowest = links.slowest();
  // Each rank knows only its own all_to_all_v counts, so the exchange cannot be simulated.
  if (links.equal || spec.op == Op::all_to_all_v) return row.cost(spec, element_bytes, slowest.alpha, slowest.beta);
  auto schedules = build_all(row, specs_for_all_ranks(spec));
  auto cost = [&](int a, int b) { return in_picoseconds(links.tiers.at(links.tier(a, b))); };
  return static_cast<double>(simulate(schedules, element_bytes, cost).time_ps) * 1e-12;
}

}  // namespace

GroupLinks group_links(const net::World& world, const net::Group& group, const Tiers& tiers) {
  GroupLinks links;
  links.tiers = tiers;
  links.widest = widest_tier(world, group);
  links.tier = [&world, members = group.members](int a, int b) {
    return tier_between(world, members[static_cast<size_t>(a)], members[static_cast<size_t>(b)]);
  };
  for (int a = 0; a < group.size(); ++a)
    for (int b = a + 1; b < group.size(); ++b) links.equal &= links.tier(a, b) == links.widest;
  return links;
}

std::vector<Candidate> candidates(const CollectiveSpec& spec, size_t element_bytes, const GroupLinks& links) {
  std::vector<Candidate> found;
  for (const AlgorithmRow* row : algorithms_for(spec.op)) {
    Candidate candidate{row, 0, row->applies ? row->applies(spec) : ""};
    if (candidate.excluded.empty()) candidate.seconds = predict(*row, spec, element_bytes, links);
    found.push_back(std::move(candidate));
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    if (a.excluded.empty() != b.excluded.empty()) return a.excluded.empty();
    return a.seconds < b.seconds;
  });
  return found;
}

const AlgorithmRow& choose(const CollectiveSpec& spec, size_t element_bytes, const GroupLinks& links) {
  auto sorted = candidates(spec, element_bytes, links);
  if (sorted.empty() || !sorted.front().excluded.empty())
    throw UsageError(
        fmt::format("no algorithm supports {} of {} elements on {} ranks", name_of(spec.op), spec.count, spec.size));
  return *sorted.front().row;
}

std::string explain_choice(const CollectiveSpec& spec, size_t element_bytes, const GroupLinks& links) {
  std::string text = fmt::format("{} of {} B among {} ranks; links {}:", name_of(spec.op), spec.count * element_bytes,
                                 spec.size, links.tiers.measured ? "as measured" : "as assumed until measured");
  for (int t = 0; t <= static_cast<int>(links.widest); ++t) {
    if (links.equal && t != static_cast<int>(links.widest)) continue;
    const AlphaBeta& link = links.tiers.at(static_cast<Tier>(t));
    text += fmt::format(" {} alpha {:.3g} us, {:.3g} GB/s;", name_of(static_cast<Tier>(t)), link.alpha * 1e6,
                        link.beta > 0 ? 1e-9 / link.beta : 0);
  }
  text += links.equal ? " times by formula" : " times by simulation";
  bool first = true;
  for (const Candidate& candidate : candidates(spec, element_bytes, links)) {
    if (!candidate.excluded.empty()) {
      text += fmt::format("\n    {:<22} does not apply: {}", candidate.row->name, candidate.excluded);
      continue;
    }
    text += fmt::format("\n  {} {:<22} {:.3f} us", first ? "*" : " ", candidate.row->name, candidate.seconds * 1e6);
    first = false;
  }
  return text;
}

RankGrid grid_of_group(const net::World& world, const net::Group& group, const std::vector<int>& given) {
  int size = group.size();
  if (!given.empty()) {
    int product = 1;
    for (int dim : given) {
      if (dim < 1)
        throw UsageError(fmt::format("shape: got {}; expected at least one rank per axis", fmt::join(given, "x")));
      product *= dim;
    }
    if (product != size)
      throw UsageError(fmt::format("shape: got {} = {} ranks; expected {}, the size of the group",
                                   fmt::join(given, "x"), product, size));
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
