#include "esp/train/not_finite.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"

namespace esp::train {
namespace {

// The stem is part 0, and the head behind the last block.
std::string part_name(int64_t part, const model::Model& model) {
  if (part == 0) return "stem";
  return part > model.num_blocks() ? "head" : fmt::format("blocks.{}", part - 1);
}

}  // namespace

bool NotFiniteSearch::finite(const tensor::Tensor& x) const {
  return !x.defined() || std::isfinite(kernel::sum_of_squares(x.data(), x.count(), x.dtype(), context_.stream));
}

bool NotFiniteSearch::values_finite(int64_t part) const {
  const std::string name = part_name(part, *model_);
  bool all = true;
  for (nn::ParameterList* list : {&model_->parameters(), model_->experts()}) {
    if (!list) continue;
    for (const nn::ParameterList::Unit& unit : list->units())
      if (unit.name == name)
        for (const nn::Parameter* p : unit.parameters) all = finite(p->weight.used_value()) && all;
  }
  return all;
}

template <typename F>
void NotFiniteSearch::look_at(int64_t part, F&& output_finite) {
  const bool values = values_finite(part);
  if (const bool output = output_finite(); !values || !output) found_ = std::min(found_, 2 * part + (values ? 1 : 0));
}

model::HiddenStates NotFiniteSearch::through(const Piece& piece, nn::ForwardContext& pass,
                                             const model::ModelBatch& batch, model::HiddenStates state) {
  const autograd::NoRecording quiet(*pass.tape);
  const auto handed_on = [&](model::HiddenStates made) {
    state = std::move(made);
    return finite(state.x.value()) && finite(state.memory.value());
  };
  if (piece.stem) look_at(0, [&] { return handed_on(model_->stem(pass, batch)); });
  for (auto i = static_cast<int>(piece.blocks.begin); i < piece.blocks.end; ++i)
    look_at(i + 1, [&] { return handed_on(model_->blocks(i, i + 1, pass, state, batch)); });
  if (piece.head)
    look_at(model_->num_blocks() + 1, [&] { return finite(model_->loss(pass, state, batch, 1).total.value()); });
  return state;
}

std::string describe(FoundNotFinite found, const model::Model& model, int rank) {
  if (found == kNotLooked) return "";
  if (found == kAllFinite)
    return ": computed again every part of it is finite: the machine, not the model, may be at fault (espalier doctor)";
  const std::string part = part_name(found / 2, model);
  return found % 2 == 0
             ? fmt::format(": values of {} are not (rank {})", part, rank)
             : fmt::format(": {} is the first whose output is not, of values that are (rank {})", part, rank);
}

}  // namespace esp::train
