#include "esp/kernel/activation.h"

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/table.h"

namespace esp::kernel {
namespace {

struct Row {
  std::string_view name;
  Activation activation;
};
constexpr Row kActivations[] = {{"none", Activation::none}, {"relu", Activation::relu},
                                {"gelu", Activation::gelu}, {"gelu_erf", Activation::gelu_erf},
                                {"silu", Activation::silu}, {"tanh", Activation::tanh}};

}  // namespace

std::string_view name_of(Activation activation) {
  for (const Row& row : kActivations)
    if (row.activation == activation) return row.name;
  check_failed(__FILE__, __LINE__, "known activation", fmt::format("{}", static_cast<int>(activation)));
}

Activation parse_activation(std::string_view name) {
  return find_row("activation", kActivations, name).activation;
}

}  // namespace esp::kernel
