// Result of a search and its counters, and the lists kept during it: the best few, and the Pareto front of time against
// memory.
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
// Orders by value, then by memory, then by the axes' values: a total order, so that every method and any number of
// threads returns the same best choice.
bool better(const RankedChoice& a, const RankedChoice& b);

struct SearchCounts {
  int64_t considered = 0;  // choices examined, each once
  int64_t broken = 0;      // of them: against a rule
  int64_t too_large = 0;   // of them: too large for the memory
  int64_t pruned = 0;      // proven not better than the best, without an estimate
  int64_t evaluated = 0;   // fully estimated
  int64_t subtrees = 0;    // groups of choices rejected together, not counted above
  int64_t feasible() const { return pruned + evaluated; }
  void add(const SearchCounts& other);
};

struct SearchResult {
  std::string method;
  bool exact = false;  // whether the method proves optimality
  std::vector<RankedChoice> top, front, seen;
  SearchCounts counts;
  double elapsed_s = 0;
  bool found() const { return !top.empty(); }
  const RankedChoice& best() const { return top.front(); }
};

struct SearchOptions {
  size_t top = 10;
  bool pareto = false;      // keeps the front, and does not prune candidates for it
  size_t keep_seen = 0;     // maximum number of estimated choices to record (for a picture)
  int threads = 1;          // exhaustive search only
  uint64_t seed = 1;        // of randomised methods
  int64_t evaluations = 0;  // limit of randomised methods; 0: by the size of the space
};

// The best `most`, and the front on request.
class BestChoices {
 public:
  explicit BestChoices(const SearchOptions& options) : options_(options) {}
  void offer(const RankedChoice& found);
  // Whether no choice with this floor (and memory, where known) can enter the lists.
  bool cannot_improve(const ChoiceValue& floor, double memory_bytes) const;
  void take(BestChoices&& other);
  void move_to(SearchResult& result);

 private:
  void offer_front(const RankedChoice& found);

  SearchOptions options_;
  std::vector<RankedChoice> top_, front_, seen_;  // front_: by time ascending, memory descending
  int64_t num_offered_ = 0, seen_every_ = 1;
};

}  // namespace esp::plan
