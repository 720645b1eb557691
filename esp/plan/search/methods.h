// The methods that search a problem, by name. `exact` ones prove that nothing allowed is better; the others draw, from
// a seed, and come back with the best they met.
#pragma once

#include <span>
#include <string_view>

#include "esp/plan/search/result.h"

namespace esp::plan {

struct SearchMethod {
  std::string_view name, help;
  bool exact;
  SearchResult (*run)(const Problem& problem, const SearchOptions& options);
};
std::span<const SearchMethod> search_methods();
const SearchMethod& search_method(std::string_view name);  // UsageError lists the known

// One per file.
SearchResult search_exhaustive(const Problem& problem, const SearchOptions& options);
SearchResult search_dynamic(const Problem& problem, const SearchOptions& options);
SearchResult search_integer(const Problem& problem, const SearchOptions& options);
SearchResult search_evolution(const Problem& problem, const SearchOptions& options);
SearchResult search_annealing(const Problem& problem, const SearchOptions& options);
SearchResult search_policy_gradient(const Problem& problem, const SearchOptions& options);

}  // namespace esp::plan
