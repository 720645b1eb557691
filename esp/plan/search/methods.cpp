#include "esp/plan/search/methods.h"

#include "esp/base/table.h"

namespace esp::plan {
namespace {

constexpr SearchMethod kMethods[] = {
    {"exhaustive", "checks rules, memory and lower bound of every choice, then estimates it", true, search_exhaustive},
    {"dynamic", "dynamic programming over layers and stages gives a bound; estimates in its order", true,
     search_dynamic},
    {"integer", "integer programming: branch and bound over the axes", true, search_integer},
    {"evolution", "evolutionary search: population, crossover, mutation", false, search_evolution},
    {"annealing", "simulated annealing: random walk with decreasing temperature", false, search_annealing},
    {"gradient", "reinforcement learning: policy gradient (REINFORCE), axis by axis", false, search_policy_gradient},
};

}  // namespace

std::span<const SearchMethod> search_methods() {
  return kMethods;
}

const SearchMethod& search_method(std::string_view name) {
  return find_row("search method", kMethods, name);
}

}  // namespace esp::plan
