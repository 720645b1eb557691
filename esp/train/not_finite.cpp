#include "esp/train/not_finite.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "esp/kernel/elementwise.h"

namespace esp::train {
namespace {

bool finite(const tensor::Tensor& x, const tensor::Context& context) {
  return !x.defined() || std::isfinite(kernel::sum_of_squares(x.data(), x.count(), x.dtype(), context.stream));
}

}  // namespace

FoundNotFinite first_not_finite(model::Model& model, nn::Pass& pass, const model::Batch& batch,
                                const tensor::Context& context) {
  const autograd::NoRecording quiet(*pass.tape);
  FoundNotFinite found = kAllFinite;
  model::State state;
  const auto head = static_cast<size_t>(model.num_blocks()) + 1;  // the stem is part 0
  for (size_t part = 0; part <= head; ++part) {
    const std::string& name = model.parameters().units()[part].name;
    bool values = true;
    for (nn::ParameterList* list : {&model.parameters(), model.experts()}) {
      if (!list) continue;
      for (const nn::ParameterList::Unit& unit : list->units())
        if (unit.name == name)
          for (const nn::Parameter* p : unit.parameters) values = finite(p->weight.used_value(), context) && values;
    }
    bool output = true;
    if (part < head) {
      const auto last = static_cast<int>(part);
      state = part == 0 ? model.stem(pass, batch) : model.blocks(last - 1, last, pass, state, batch);
      output = finite(state.x.value(), context) && finite(state.memory.value(), context);
    } else {
      output = finite(model.loss(pass, state, batch, 1).total.value(), context);
    }
    if (!values || !output) found = std::min(found, static_cast<FoundNotFinite>(2 * part + (values ? 1 : 0)));
  }
  return found;
}

std::string describe(FoundNotFinite found, model::Model& model, int rank) {
  if (found == kNotLooked) return "";
  if (found == kAllFinite)
    return ": computed again every part of it is finite: the machine, not the model, may be at fault (espalier doctor)";
  const std::string& part = model.parameters().units()[static_cast<size_t>(found / 2)].name;
  return found % 2 == 0
             ? fmt::format(": values of {} are not (rank {})", part, rank)
             : fmt::format(": {} is the first whose output is not, of values that are (rank {})", part, rank);
}

}  // namespace esp::train
