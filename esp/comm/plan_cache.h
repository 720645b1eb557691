// LRU cache of compiled plans, so that a repeated call shape costs one lookup.
#pragma once

#include <algorithm>
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
  int algorithm = kAutoAlgorithm;  // the algorithm chosen for the call
  std::unique_ptr<Plan> plan;
  uint64_t last_used = 0;
};

class PlanCache {
 public:
  static constexpr size_t kMaxPlans = 64;
  // Limit on the scratch memory of all cached plans. A single plan above the limit is still cached.
  static constexpr size_t kMaxBytes = size_t{256} << 20;

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
    size_t bytes = bytes_of(*plan);
    while (!entries_.empty() && (entries_.size() == kMaxPlans || bytes_ + bytes > kMaxBytes)) drop_oldest();
    bytes_ += bytes;
    auto entry = std::make_unique<PlanEntry>(PlanEntry{key, algorithm, std::move(plan), ++clock_});
    return *entries_.emplace_back(std::move(entry));
  }

  size_t size() const { return entries_.size(); }

 private:
  static size_t bytes_of(const Plan& plan) { return plan.scratch_bytes + (plan.stash ? plan.input_bytes : 0); }

  void drop_oldest() {
    auto older = [](const auto& a, const auto& b) { return a->last_used < b->last_used; };
    auto oldest = std::min_element(entries_.begin(), entries_.end(), older);
    bytes_ -= bytes_of(*(*oldest)->plan);
    entries_.erase(oldest);
  }

  std::vector<std::unique_ptr<PlanEntry>> entries_;
  uint64_t clock_ = 0;
  size_t bytes_ = 0;
};

}  // namespace esp::comm
