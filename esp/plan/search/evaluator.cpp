#include "esp/plan/search/evaluator.h"

#include "esp/base/clock.h"

namespace esp::plan {

size_t ChoiceHash::operator()(const Choice& choice) const {
  uint64_t hash = 0xcbf29ce484222325u;  // hash function FNV-1a
  for (const uint8_t index : choice) hash = (hash ^ index) * 0x100000001b3u;
  return hash;
}

Evaluator::Evaluator(const SearchProblem& problem, const SearchOptions& options, bool cache_results)
    : problem_(problem),
      options_(options),
      caches_results_(cache_results),
      prune_(!cache_results),
      start_ns_(now_ns()),
      best_choices_(options) {}

Evaluation Evaluator::evaluate(const Choice& choice) {
  if (caches_results_) {
    if (const auto at = cache_.find(choice); at != cache_.end()) return at->second;
  }
  Evaluation answer;
  bool allowed = true;
  for (size_t n = 1; n <= problem_.num_axes() && allowed; ++n) allowed = problem_.allowed(choice, n);
  if (allowed) {
    answer = evaluate_allowed(choice);
  } else {
    ++counts_.considered, ++counts_.broken;
  }
  if (caches_results_) cache_.emplace(choice, answer);
  return answer;
}

Evaluation Evaluator::evaluate_allowed(const Choice& choice) {
  ++counts_.considered;
  const ChoiceMemory memory = problem_.choice_memory(choice);
  if (!memory.fits) {
    ++counts_.too_large;
    return {Evaluation::Outcome::too_large, kNever, memory.excess};
  }
  return evaluate_fitting(choice, memory);
}

Evaluation Evaluator::evaluate_fitting(const Choice& choice, const ChoiceMemory& memory) {
  if (prune_) {
    const ChoiceValue lower_bound = problem_.lower_bound(choice, problem_.num_axes(), memory.memory_bytes);
    if (best_choices_.cannot_improve(lower_bound, memory.memory_bytes)) {
      ++counts_.pruned;
      return {Evaluation::Outcome::pruned, lower_bound.value, 0};
    }
  }
  ++counts_.evaluated;
  const ChoiceValue choice_value = problem_.choice_value(choice);
  best_choices_.offer({choice, choice_value.value, choice_value.time_s, memory.memory_bytes});
  return {Evaluation::Outcome::estimated, choice_value.value, 0};
}

bool Evaluator::cannot_improve(const Choice& choice, size_t num_set, const ChoiceMemory& least_memory) const {
  return best_choices_.cannot_improve(problem_.lower_bound(choice, num_set, least_memory.memory_bytes),
                                      least_memory.memory_bytes);
}

void Evaluator::merge(Evaluator&& other) {
  counts_.add(other.counts_);
  best_choices_.merge(std::move(other.best_choices_));
}

SearchResult Evaluator::finish(std::string method, bool exact) {
  SearchResult result;
  result.method = std::move(method);
  result.exact = exact;
  result.counts = counts_;
  result.elapsed_s = static_cast<double>(now_ns() - start_ns_) * 1e-9;
  best_choices_.move_to(result);
  return result;
}

}  // namespace esp::plan
