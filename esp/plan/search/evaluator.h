// Evaluates choices for all search methods. It checks the rules first, then the memory, then the lower bound; only
// choices that pass are estimated. Each choice is counted once. For methods that may return to a choice, results are
// cached.
#pragma once

#include <unordered_map>

#include "esp/plan/search/result.h"

namespace esp::plan {

struct Evaluation {
  enum class Outcome : uint8_t { broken, too_large, pruned, estimated } outcome = Outcome::broken;
  double value = kNever;  // the objective's value; for a pruned choice, its lower bound
  double excess = 0;      // memory / capacity − 1, for a choice that does not fit
  bool feasible() const { return outcome == Outcome::pruned || outcome == Outcome::estimated; }
};

struct ChoiceHash {
  size_t operator()(const Choice& choice) const;
};

class Evaluator {
 public:
  // `cache_results`: true for methods that may evaluate the same choice again.
  Evaluator(const SearchProblem& problem, const SearchOptions& options, bool cache_results);

  const SearchProblem& problem() const { return problem_; }
  const SearchOptions& options() const { return options_; }
  Evaluation evaluate(const Choice& choice);
  // evaluate() without the check of the rules, for a choice that satisfies them.
  Evaluation evaluate_allowed(const Choice& choice);
  // evaluate() without the checks of rules and memory, for a choice that satisfies the rules and fits. `memory`: memory
  // of the choice.
  Evaluation evaluate_fitting(const Choice& choice, const ChoiceMemory& memory);
  // True if no completion of this partial choice can improve the result. `least_memory`: a lower bound of the memory of
  // the completions.
  bool cannot_improve(const Choice& choice, size_t num_set, const ChoiceMemory& least_memory) const;
  bool cannot_improve(const ChoiceValue& lower_bound, const ChoiceMemory& memory) const {
    return best_choices_.cannot_improve(lower_bound, memory.memory_bytes);
  }
  SearchCounts& counts() { return counts_; }
  void merge(Evaluator&& other);
  SearchResult finish(std::string method, bool exact);

 private:
  const SearchProblem& problem_;
  SearchOptions options_;
  bool caches_results_;
  bool prune_;  // false for local search, which needs the exact value of every choice
  std::unordered_map<Choice, Evaluation, ChoiceHash> cache_;
  SearchCounts counts_;
  int64_t start_ns_;
  BestChoices best_choices_;
};

}  // namespace esp::plan
