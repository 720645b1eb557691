#include "esp/parallel/tp/chain.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"
#include "esp/kernel/gemm.h"
#include "esp/nn/shard.h"

namespace esp::parallel {

using comm::Op;
using device::MemoryCategory;
using tensor::Tensor;

namespace {

enum class TensorForm : uint8_t { all, share, summand };

TensorForm read_by(MatrixSharding cut) {
  return cut == MatrixSharding::in ? TensorForm::share : TensorForm::all;
}
TensorForm made_by(MatrixSharding cut) {
  return cut == MatrixSharding::out  ? TensorForm::share
         : cut == MatrixSharding::in ? TensorForm::summand
                                     : TensorForm::all;
}

std::string subscript(int64_t i) {
  std::string text;
  for (char digit : std::to_string(i))
    text += std::string("\u2080").substr(0, 2) + static_cast<char>('\x80' + digit - '0');
  return text;
}

int64_t weight(Op op) {
  return op == Op::all_reduce ? 2 : 1;
}

// This rank's shard of matrix i [rows, cols]; element (r, c) is a function of its global position.
Tensor matrix_of(const tensor::Context& context, const ChainPlan& plan, size_t i, const nn::Shard& share) {
  const int64_t rows = plan.widths[i + 1], cols = plan.widths[i];
  const nn::IndexRange all_rows{0, rows}, all_cols{0, cols};
  const nn::IndexRange r = plan.cuts[i] == MatrixSharding::out ? share.of(rows) : all_rows;
  const nn::IndexRange c = plan.cuts[i] == MatrixSharding::in ? share.of(cols) : all_cols;
  Tensor part = tensor::empty(context, {r.count(), c.count()}, DType::f64, MemoryCategory::parameter);
  for (int64_t row = 0; row < r.count(); ++row)
    kernel::fill_normal(part.as<double>() + row * c.count(), 0, 1, i + 1, 0, (r.begin + row) * cols + c.begin,
                        c.count(), DType::f64, context.stream);
  return part;
}

Tensor empty_tensor(const tensor::Context& context, int64_t rows, int64_t cols) {
  return tensor::empty(context, {rows, cols}, DType::f64, MemoryCategory::activation);
}

// Converts a result to the form that the next matrix reads.
Tensor convert(const tensor::Context& context, TpCommunicator* tp_comm, const Tensor& x, int64_t width, TensorForm from,
               TensorForm to) {
  if (!tp_comm || from == to) return x;
  const int64_t share = width / tp_comm->size(), columns = x.dim(1);
  if (from == TensorForm::all) return x.slice(tp_comm->rank() * share, (tp_comm->rank() + 1) * share);
  if (from == TensorForm::summand && to == TensorForm::all) {
    tp_comm->run_all_reduce(x);
    return x;
  }
  Tensor y = empty_tensor(context, to == TensorForm::all ? width : share, columns);
  from == TensorForm::share ? tp_comm->run_all_gather(x, y) : tp_comm->run_reduce_scatter(x, y);
  return y;
}

}  // namespace

std::string_view name_of(MatrixSharding cut) {
  constexpr std::string_view kNames[] = {"out", "in", "whole"};
  return kNames[static_cast<size_t>(cut)];
}

int64_t ChainPlan::elements_sent() const {
  int64_t sum = 0;
  for (const ChainCollective& move : moves) sum += weight(move.op) * (ranks - 1) * move.elements;
  return sum;
}

int64_t ChainPlan::weights_held() const {
  const nn::Shard most{0, ranks};
  int64_t sum = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const int64_t rows = widths[i + 1], cols = widths[i];
    sum += cuts[i] == MatrixSharding::out  ? most.of(rows).count() * cols
           : cuts[i] == MatrixSharding::in ? rows * most.of(cols).count()
                                           : rows * cols;
  }
  return sum;
}

bool ChainPlan::shards_all() const {
  return std::find(cuts.begin(), cuts.end(), MatrixSharding::whole) == cuts.end();
}

std::string ChainPlan::text() const {
  std::string text;
  for (MatrixSharding cut : cuts) text += fmt::format("{}{}", text.empty() ? "" : " ", name_of(cut));
  return text;
}

std::string ChainPlan::cost_text() const {
  std::string terms;
  for (const ChainCollective& move : moves)
    terms += fmt::format("{}{}d{}", terms.empty() ? "" : " + ", weight(move.op) == 2 ? "2" : "", subscript(move.after));
  return terms.empty() ? "0" : fmt::format("(t−1)/t·b·({})", terms);
}

ChainPlan plan_chain(std::span<const int64_t> widths, int64_t columns, int ranks, std::vector<MatrixSharding> cuts) {
  ESP_CHECK(widths.size() == cuts.size() + 1,
            "matrix chain: got {} widths, {} matrices; expected one width more than matrices", widths.size(),
            cuts.size());
  ChainPlan plan{{widths.begin(), widths.end()}, columns, ranks, std::move(cuts), {}};
  for (size_t i = 0; i < plan.cuts.size(); ++i) {
    const TensorForm from = made_by(plan.cuts[i]),
                     to = i + 1 < plan.cuts.size() ? read_by(plan.cuts[i + 1]) : TensorForm::all;
    if (from == to || from == TensorForm::all) continue;
    const Op op = from == TensorForm::share ? Op::all_gather
                  : to == TensorForm::all   ? Op::all_reduce
                                            : Op::reduce_scatter;
    plan.moves.push_back({static_cast<int>(i) + 1, op, widths[i + 1] * columns});
  }
  return plan;
}

std::vector<ChainPlan> all_chains(std::span<const int64_t> widths, int64_t columns, int ranks) {
  const size_t num_matrices = widths.size() - 1;
  size_t choices = 1;
  for (size_t i = 0; i < num_matrices; ++i) choices *= 3;
  std::vector<ChainPlan> plans;
  for (size_t choice = 0; choice < choices; ++choice) {
    std::vector<MatrixSharding> cuts;
    for (size_t i = 0, rest = choice; i < num_matrices; ++i, rest /= 3)
      cuts.push_back(static_cast<MatrixSharding>(rest % 3));
    plans.push_back(plan_chain(widths, columns, ranks, std::move(cuts)));
  }
  std::stable_sort(plans.begin(), plans.end(), [](const ChainPlan& a, const ChainPlan& b) {
    return std::pair(a.elements_sent(), a.weights_held()) < std::pair(b.elements_sent(), b.weights_held());
  });
  return plans;
}

Tensor run_chain(const tensor::Context& context, TpCommunicator* tp_comm, const ChainPlan& plan) {
  const nn::Shard share{tp_comm ? tp_comm->rank() : 0, tp_comm ? tp_comm->size() : 1};
  ESP_CHECK(share.count == plan.ranks,
            "run_chain: got a plan for {} ranks, a communicator of {} ranks; expected equal numbers", plan.ranks,
            share.count);
  for (int64_t width : plan.widths)
    ESP_CHECK(width % plan.ranks == 0, "run_chain: got width {}; expected a multiple of the {} ranks", width,
              plan.ranks);
  Tensor x = empty_tensor(context, plan.widths[0], plan.columns);
  kernel::fill_normal(x.data(), 0, 1, 0, 0, 0, x.count(), DType::f64, context.stream);
  x = convert(context, tp_comm, x, plan.widths[0], TensorForm::all, read_by(plan.cuts[0]));
  for (size_t i = 0; i < plan.cuts.size(); ++i) {
    const Tensor w = matrix_of(context, plan, i, share);
    const Tensor y = empty_tensor(context, w.dim(0), plan.columns);
    kernel::gemm(y.data(), w.data(), x.data(), w.dim(0), plan.columns, w.dim(1), {}, DType::f64, context.stream);
    x = convert(context, tp_comm, y, plan.widths[i + 1], made_by(plan.cuts[i]),
                i + 1 < plan.cuts.size() ? read_by(plan.cuts[i + 1]) : TensorForm::all);
  }
  return x;
}

}  // namespace esp::parallel
