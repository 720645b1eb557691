// Evaluation of a choice, common to all methods: the rules, then memory, then the lower bound, and only the remaining
// choices are estimated. Each choice is counted once; methods that may return to a choice cache its value.
#pragma once

#include <unordered_map>

#include "esp/plan/search/result.h"

namespace esp::plan {

struct Evaluation {
  enum class Kind : uint8_t { broken, too_large, pruned, estimated } kind = Kind::broken;
  double value = kNever;  // pruned by its lower bound
  double excess = 0;      // memory over the capacity, relative
  bool feasible() const { return kind == Kind::pruned || kind == Kind::estimated; }
};

struct ChoiceHash {
  size_t operator()(const Choice& choice) const;
};

class Evaluator {
 public:
  // `remember`: caches the result, for methods that may evaluate a choice again.
  Evaluator(const SearchProblem& problem, const SearchOptions& options, bool remember);

  const SearchProblem& problem() const { return problem_; }
  const SearchOptions& options() const { return options_; }
  Evaluation evaluate(const Choice& choice);
  // The same for a choice whose rules were checked before.
  Evaluation evaluate_allowed(const Choice& choice);
  // The part after the memory check: `weight` is that of the choice and fits.
  Evaluation evaluate_weighed(const Choice& choice, const ChoiceMemory& weight);
  // Prunes all choices with this beginning; none is lighter than `lightest`.
  bool cannot_improve(const Choice& choice, size_t num_set, const ChoiceMemory& lightest) const;
  bool cannot_improve(const ChoiceValue& floor, const ChoiceMemory& weight) const {
    return leaders_.cannot_improve(floor, weight.memory_bytes);
  }
  SearchCounts& counts() { return counts_; }
  void take(Evaluator&& other);
  SearchResult finish(std::string method, bool exact);

 private:
  const SearchProblem& problem_;
  SearchOptions options_;
  bool remember_;
  bool prune_;  // false for local search, which needs values, not bounds
  std::unordered_map<Choice, Evaluation, ChoiceHash> known_;
  SearchCounts counts_;
  int64_t begun_ns_;
  BestChoices leaders_;
};

}  // namespace esp::plan
