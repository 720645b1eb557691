#include "esp/train/non_finite_search.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"
#include "esp/train/rank_identity.h"

namespace esp::train {
namespace {

// Name of a part. Part 0 is the stem, then follow the blocks, and the last part is the head.
std::string part_name(int64_t part, const model::Model& model) {
  if (part == 0) return "stem";
  return part > model.num_blocks() ? "head" : fmt::format("blocks.{}", part - 1);
}

}  // namespace

bool NonFiniteSearch::finite(const tensor::Tensor& x) const {
  return !x.defined() || std::isfinite(kernel::sum_of_squares(x.data(), x.count(), x.dtype(), context_.stream));
}

bool NonFiniteSearch::values_finite(int64_t part) const {
  const std::string name = part_name(part, *model_);
  bool all = true;
  for (nn::ParameterList* list : {&model_->parameters(), model_->experts()}) {
    if (!list) continue;
    for (const nn::ParameterList::Unit& unit : list->units())
      if (unit.name == name)
        for (const nn::Parameter* p : unit.parameters) all = finite(p->weight.fetch_value()) && all;
  }
  return all;
}

template <typename F>
void NonFiniteSearch::check_part(int64_t part, F&& output_finite) {
  const bool values = values_finite(part);
  if (const bool output = output_finite(); !values || !output) found_ = std::min(found_, 2 * part + (values ? 1 : 0));
}

model::HiddenStates NonFiniteSearch::run_chunk(const ModelChunk& chunk, nn::ForwardContext& pass,
                                               const model::ModelBatch& batch, model::HiddenStates state) {
  const autograd::NoGradGuard quiet(*pass.tape);
  const auto handed_on = [&](model::HiddenStates made) {
    state = std::move(made);
    return finite(state.x.value()) && finite(state.memory.value());
  };
  if (chunk.stem) check_part(0, [&] { return handed_on(model_->stem(pass, batch)); });
  for (auto i = static_cast<int>(chunk.blocks.begin); i < chunk.blocks.end; ++i)
    check_part(i + 1, [&] { return handed_on(model_->blocks(i, i + 1, pass, state, batch)); });
  if (chunk.head)
    check_part(model_->num_blocks() + 1, [&] { return finite(model_->loss(pass, state, batch, 1).total.value()); });
  return state;
}

std::string describe(NonFinitePart found, const model::Model& model, int rank) {
  if (found == kNotSearched) return "";
  if (found == kAllFinite)
    return fmt::format(
        ": a second forward pass is finite in every part. The {} are not the cause: both passes used the same. "
        "The cause is a hardware error or a bug. Check the machine: espalier doctor",
        kComparedByRanks);
  const std::string part = part_name(found / 2, model);
  return found % 2 == 0
             ? fmt::format(": the parameters of {} are not finite (rank {})", part, rank)
             : fmt::format(": {} is the first part with a non-finite output from finite parameters (rank {})", part,
                           rank);
}

}  // namespace esp::train
