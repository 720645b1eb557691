#include "esp/plan/suggestions.h"

#include <algorithm>

#include <fmt/format.h>

namespace esp::plan {
namespace {

// All policies that differ from `from.policy` in one axis or switch.
std::vector<Suggestion> neighbours(const Suggestion& from) {
  std::vector<Suggestion> all;
  const Policy& given = from.policy;
  const auto add = [&](std::string change, auto edit) {
    Suggestion next = from;
    edit(next.policy);
    next.change = from.change.empty() ? std::move(change) : fmt::format("{}, {}", from.change, change);
    all.push_back(std::move(next));
  };
  if (given.recompute != RecomputePolicy::selective && given.recompute != RecomputePolicy::full)
    add("recompute = selective", [](Policy& p) { p.recompute = RecomputePolicy::selective; });
  if (given.recompute != RecomputePolicy::full)
    add("recompute = full", [](Policy& p) { p.recompute = RecomputePolicy::full; });
  for (int zero = given.zero + 1; zero <= 3; ++zero)
    if (given.dp > 1) add(fmt::format("zero = {}", zero), [=](Policy& p) { p.zero = zero; });
  if (given.micro_batch > 1 && given.micro_batch % 2 == 0)
    add(fmt::format("micro_batch = {}", given.micro_batch / 2), [](Policy& p) { p.micro_batch /= 2; });
  if (!given.sequence && given.tp > 1) add("sequence = true", [](Policy& p) { p.sequence = true; });
  for (int times = 2; times <= 16; times *= 2) {
    if (given.dp % times != 0) break;
    add(fmt::format("tp = {}, dp = {}", given.tp * times, given.dp / times),
        [=](Policy& p) { p.tp *= times, p.dp /= times; });
    add(fmt::format("pp = {}, dp = {}", given.pp * times, given.dp / times),
        [=](Policy& p) { p.pp *= times, p.dp /= times; });
  }
  if (given.offload == OffloadTarget::none) add("offload = host", [](Policy& p) { p.offload = OffloadTarget::host; });
  return all;
}

bool fits(const ModelShape& shape, const Cluster& cluster, Suggestion& one) {
  if (policy_error(shape, cluster, one.policy)) return false;
  const MemoryFit fit = memory_fit(memory_of(shape, cluster, one.policy), cluster, one.policy);
  one.memory_bytes = fit.needed;
  return fit.fits();
}

}  // namespace

std::vector<Suggestion> suggestions(const ModelShape& shape, const Cluster& cluster, const Policy& policy,
                                    size_t most) {
  std::vector<Suggestion> tried = {{"", policy}}, found;
  for (int changes = 1; changes <= 2 && found.empty(); ++changes) {
    std::vector<Suggestion> next;
    for (const Suggestion& from : tried)
      for (Suggestion& one : neighbours(from)) {
        if (fits(shape, cluster, one)) {
          one.step_s = estimate(shape, cluster, one.policy).step_s;
          found.push_back(one);
        }
        next.push_back(std::move(one));
      }
    tried = std::move(next);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Suggestion& a, const Suggestion& b) { return a.step_s < b.step_s; });
  if (found.size() > most) found.resize(most);
  return found;
}

}  // namespace esp::plan
