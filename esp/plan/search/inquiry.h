// How every method asks about a choice: the rules, then memory, then the floor, and only what is left is estimated.
// Each choice is counted once; methods that may come back to one remember what it was worth.
#pragma once

#include <unordered_map>

#include "esp/plan/search/result.h"

namespace esp::plan {

struct Answer {
  enum class Kind : uint8_t { broken, too_large, pruned, estimated } kind = Kind::broken;
  double value = kNever;  // pruned: its floor
  double excess = 0;      // of memory
  bool feasible() const { return kind == Kind::pruned || kind == Kind::estimated; }
};

struct ChoiceHash {
  size_t operator()(const Choice& choice) const;
};

class Inquiry {
 public:
  // `remember`: whether a choice may be asked again.
  Inquiry(const Problem& problem, const SearchOptions& options, bool remember);

  const Problem& problem() const { return problem_; }
  const SearchOptions& options() const { return options_; }
  Answer ask(const Choice& choice);
  // The same of a choice whose rules were followed on the way.
  Answer ask_allowed(const Choice& choice);
  // Only what comes after the weighing: `weight` is the choice's and fits.
  Answer ask_weighed(const Choice& choice, const Weight& weight);
  // Of all that begin so, none lighter than `lightest`.
  bool hopeless(const Choice& choice, size_t num_set, const Weight& lightest) const;
  bool hopeless(const Worth& floor, const Weight& weight) const {
    return leaders_.hopeless(floor, weight.memory_bytes);
  }
  Counts& counts() { return counts_; }
  void take(Inquiry&& other);
  SearchResult finish(std::string method, bool exact);

 private:
  const Problem& problem_;
  SearchOptions options_;
  bool remember_;
  bool prune_;  // methods that climb want values, not floors
  std::unordered_map<Choice, Answer, ChoiceHash> known_;
  Counts counts_;
  int64_t begun_ns_;
  Leaders leaders_;
};

}  // namespace esp::plan
