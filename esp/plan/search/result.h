// What a search found and what it took to find it, and the lists it keeps meanwhile: the best few and the front of time
// against memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "esp/plan/search/problem.h"

namespace esp::plan {

struct Found {
  Choice choice{};
  double value = kNever, time_s = kNever, memory_bytes = 0;
};
// Better by value, then by memory, then by the order of the axes' values: a total order, so that every method and any
// number of threads names the same winner.
bool better(const Found& a, const Found& b);

struct Counts {
  int64_t considered = 0;  // choices looked at, each once
  int64_t broken = 0;      // of them: against a rule
  int64_t too_large = 0;   // not fitting in memory
  int64_t pruned = 0;      // proven no better than what was known, without an estimate
  int64_t evaluated = 0;   // estimated whole
  int64_t subtrees = 0;    // groups of choices put aside together, not counted above
  int64_t feasible() const { return pruned + evaluated; }
  void add(const Counts& other);
};

struct SearchResult {
  std::string method;
  bool exact = false;  // whether the method proves its answer
  std::vector<Found> top, front, seen;
  Counts counts;
  double elapsed_s = 0;
  bool found() const { return !top.empty(); }
  const Found& best() const { return top.front(); }
};

struct SearchOptions {
  size_t top = 10;
  bool pareto = false;      // keep the front, and prune nothing that might be on it
  size_t keep_seen = 0;     // of the choices estimated, so many at most (for a picture)
  int threads = 1;          // exhaustive only
  uint64_t seed = 1;        // of methods that draw
  int64_t evaluations = 0;  // most of methods that draw; 0: by the space's size
};

// The best `most`, and the front where asked.
class Leaders {
 public:
  explicit Leaders(const SearchOptions& options) : options_(options) {}
  void offer(const Found& found);
  // Whether nothing of this floor (and memory, where known) could enter the lists.
  bool hopeless(const Worth& floor, double memory_bytes) const;
  void take(Leaders&& other);
  void move_to(SearchResult& result);

 private:
  void offer_front(const Found& found);

  SearchOptions options_;
  std::vector<Found> top_, front_, seen_;  // front_: by time ascending, memory descending
  int64_t num_offered_ = 0, seen_every_ = 1;
};

}  // namespace esp::plan
