// Result of a search: counters, the best choices, and the Pareto front of time against memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "esp/plan/search/problem.h"

namespace esp::plan {

struct RankedChoice {
  Choice choice{};
  double value = kNever, time_s = kNever, memory_bytes = 0;
};
// Whether a ranks before b: by value, then by memory, then by the values of the axes. This is a total order, so every
// method and any number of threads return the same best choice.
bool better(const RankedChoice& a, const RankedChoice& b);

struct SearchCounts {
  int64_t considered = 0;  // number of choices examined; each counts once
  int64_t broken = 0;      // considered choices that break a rule
  int64_t too_large = 0;   // considered choices that exceed the memory
  int64_t pruned = 0;      // choices rejected by their lower bound, without an estimate
  int64_t evaluated = 0;   // choices that were fully estimated
  // partial choices rejected together with all their completions; the completions are not counted above
  int64_t subtrees = 0;
  int64_t feasible() const { return pruned + evaluated; }
  void add(const SearchCounts& other);
};

struct SearchResult {
  std::string method;
  bool exact = false;  // true if the method proves that the result is optimal
  std::vector<RankedChoice> top, front, seen;
  SearchCounts counts;
  double elapsed_s = 0;
  bool found() const { return !top.empty(); }
  const RankedChoice& best() const { return top.front(); }
};

struct SearchOptions {
  size_t top = 10;
  bool pareto = false;   // also collect the Pareto front; choices that may belong to it are not pruned
  size_t keep_seen = 0;  // maximum number of estimated choices to record for the landscape picture
  int threads = 1;       // number of threads of the exhaustive search
  uint64_t seed = 1;     // seed of randomised methods
  // maximum number of evaluations of randomised methods; 0: derived from the size of the space
  int64_t evaluations = 0;
};

// Collects the best SearchOptions::top choices and, if requested, the Pareto front.
class BestChoices {
 public:
  explicit BestChoices(const SearchOptions& options) : options_(options) {}
  void offer(const RankedChoice& found);
  // True if no choice with this lower bound can enter the lists. `memory_bytes`: memory of the choice, or a lower
  // bound.
  bool cannot_improve(const ChoiceValue& lower_bound, double memory_bytes) const;
  void merge(BestChoices&& other);
  void move_to(SearchResult& result);

 private:
  void offer_front(const RankedChoice& found);

  SearchOptions options_;
  std::vector<RankedChoice> top_, front_, seen_;  // front_: sorted by ascending time, so descending memory
  int64_t num_offered_ = 0, seen_every_ = 1;
};

}  // namespace esp::plan
