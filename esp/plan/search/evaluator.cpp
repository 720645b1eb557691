#include "esp/plan/search/evaluator.h"

#include "esp/base/clock.h"

namespace esp::plan {

size_t ChoiceHash::operator()(const Choice& choice) const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const uint8_t index : choice) hash = (hash ^ index) * 0x100000001b3u;
  return hash;
}

Evaluator::Evaluator(const SearchProblem& problem, const SearchOptions& options, bool remember)
    : problem_(problem),
      options_(options),
      remember_(remember),
      prune_(!remember),
      begun_ns_(now_ns()),
      leaders_(options) {}

Evaluation Evaluator::evaluate(const Choice& choice) {
  if (remember_) {
    if (const auto at = known_.find(choice); at != known_.end()) return at->second;
  }
  Evaluation answer;
  bool allowed = true;
  for (size_t n = 1; n <= problem_.num_axes() && allowed; ++n) allowed = problem_.allowed(choice, n);
  if (allowed) {
    answer = evaluate_allowed(choice);
  } else {
    ++counts_.considered, ++counts_.broken;
  }
  if (remember_) known_.emplace(choice, answer);
  return answer;
}

Evaluation Evaluator::evaluate_allowed(const Choice& choice) {
  ++counts_.considered;
  const ChoiceMemory weight = problem_.weigh(choice);
  if (!weight.fits) {
    ++counts_.too_large;
    return {Evaluation::Kind::too_large, kNever, weight.excess};
  }
  return evaluate_weighed(choice, weight);
}

Evaluation Evaluator::evaluate_weighed(const Choice& choice, const ChoiceMemory& weight) {
  if (prune_) {
    const ChoiceValue floor = problem_.floor(choice, problem_.num_axes(), weight.memory_bytes);
    if (leaders_.cannot_improve(floor, weight.memory_bytes)) {
      ++counts_.pruned;
      return {Evaluation::Kind::pruned, floor.value, 0};
    }
  }
  ++counts_.evaluated;
  const ChoiceValue worth = problem_.worth(choice);
  leaders_.offer({choice, worth.value, worth.time_s, weight.memory_bytes});
  return {Evaluation::Kind::estimated, worth.value, 0};
}

bool Evaluator::cannot_improve(const Choice& choice, size_t num_set, const ChoiceMemory& lightest) const {
  return leaders_.cannot_improve(problem_.floor(choice, num_set, lightest.memory_bytes), lightest.memory_bytes);
}

void Evaluator::take(Evaluator&& other) {
  counts_.add(other.counts_);
  leaders_.take(std::move(other.leaders_));
}

SearchResult Evaluator::finish(std::string method, bool exact) {
  SearchResult result;
  result.method = std::move(method);
  result.exact = exact;
  result.counts = counts_;
  result.elapsed_s = static_cast<double>(now_ns() - begun_ns_) * 1e-9;
  leaders_.move_to(result);
  return result;
}

}  // namespace esp::plan
