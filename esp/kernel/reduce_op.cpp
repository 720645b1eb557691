#include "esp/base/check.h"
#include "esp/base/table.h"
#include "esp/kernel/reduce.h"

namespace esp::kernel {
namespace {

struct Row {
  std::string_view name;
  ReduceOp op;
};
constexpr Row kOps[] = {{"sum", ReduceOp::sum},
                        {"prod", ReduceOp::prod},
                        {"min", ReduceOp::min},
                        {"max", ReduceOp::max},
                        {"avg", ReduceOp::avg}};

}  // namespace

std::string_view name_of(ReduceOp op) {
  for (const Row& row : kOps)
    if (row.op == op) return row.name;
  check_failed(__FILE__, __LINE__, "known reduction", fmt::format("{}", static_cast<int>(op)));
}

ReduceOp parse_reduce_op(std::string_view name) {
  return find_row("reduction", kOps, name).op;
}

}  // namespace esp::kernel
