// The search methods by name. A method with `exact` proves that no allowed choice is better. The others are randomised
// (with a seed) and return the best choice that they found.
#pragma once

#include <span>
#include <string_view>

#include "esp/plan/search/result.h"

namespace esp::plan {

struct SearchMethod {
  std::string_view name, help;
  bool exact;
  SearchResult (*run)(const SearchProblem& problem, const SearchOptions& options);
};
std::span<const SearchMethod> search_methods();
const SearchMethod& search_method(std::string_view name);  // UsageError for an unknown name; it lists the known names

// Each method is implemented in a file of its name.
SearchResult search_exhaustive(const SearchProblem& problem, const SearchOptions& options);
SearchResult search_dynamic(const SearchProblem& problem, const SearchOptions& options);
SearchResult search_integer(const SearchProblem& problem, const SearchOptions& options);
SearchResult search_evolution(const SearchProblem& problem, const SearchOptions& options);
SearchResult search_annealing(const SearchProblem& problem, const SearchOptions& options);
SearchResult search_policy_gradient(const SearchProblem& problem, const SearchOptions& options);

}  // namespace esp::plan
