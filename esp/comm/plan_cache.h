// The plans of the calls made so far, so that a repeated shape costs a look-up. Bounded: the plan unused for longest
// goes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "esp/comm/plan.h"

namespace esp::comm {

inline constexpr int kAutoAlgorithm = -1;

struct PlanKey {
  Op op = Op::barrier;
  int algorithm = kAutoAlgorithm;
  int root = 0;
  uint32_t element_bytes = 1;
  size_t count = 0;
  ptrdiff_t alias = 0;
  bool aliased = false;
  bool operator==(const PlanKey&) const = default;
};

struct PlanEntry {
  PlanKey key;
  int algorithm = kAutoAlgorithm;  // the one chosen
  std::unique_ptr<Plan> plan;
  uint64_t last_used = 0;
};

class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 64;

  PlanEntry* find(const PlanKey& key) {
    ++clock_;
    for (auto& entry : entries_)
      if (entry->key == key) {
        entry->last_used = clock_;
        return entry.get();
      }
    return nullptr;
  }

  PlanEntry& insert(const PlanKey& key, int algorithm, std::unique_ptr<Plan> plan) {
    auto entry = std::make_unique<PlanEntry>(PlanEntry{key, algorithm, std::move(plan), ++clock_});
    if (entries_.size() < kMaxPlans) return *entries_.emplace_back(std::move(entry));
    auto oldest = &entries_.front();
    for (auto& candidate : entries_)
      if (candidate->last_used < (*oldest)->last_used) oldest = &candidate;
    *oldest = std::move(entry);
    return **oldest;
  }

 private:
  std::vector<std::unique_ptr<PlanEntry>> entries_;
  uint64_t clock_ = 0;
};

}  // namespace esp::comm
