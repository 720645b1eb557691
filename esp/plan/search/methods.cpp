#include "esp/plan/search/methods.h"

#include "esp/base/table.h"

namespace esp::plan {
namespace {

constexpr SearchMethod kMethods[] = {
    {"exhaustive", "every choice: rules, then memory, then a lower bound, then the estimate", true, search_exhaustive},
    {"dynamic", "layers over stages by dynamic programming; estimates in the order of its value", true, search_dynamic},
    {"integer", "integer programming: branch and bound over the axes by relaxations", true, search_integer},
    {"evolution", "zeroth order: a population with crossover and mutation", false, search_evolution},
    {"annealing", "zeroth order: one random walk with decreasing temperature", false, search_annealing},
    {"gradient", "reinforcement learning: the policy gradient of choices axis by axis", false, search_policy_gradient},
};

}  // namespace

std::span<const SearchMethod> search_methods() {
  return kMethods;
}

const SearchMethod& search_method(std::string_view name) {
  return find_row("search method", kMethods, name);
}

}  // namespace esp::plan
