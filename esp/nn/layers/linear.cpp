#include "esp/nn/layers/linear.h"

#include "esp/autograd/functions/linear.h"

namespace esp::nn {

Linear::Linear(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init)
    : weight_(list.add(name + ".weight", {in, out}, init, true)) {
  if (bias) bias_ = &list.add(name + ".bias", {out}, Init::zeros(), false);
}

autograd::Variable Linear::operator()(Pass& pass, const autograd::Variable& x) const {
  return autograd::linear(*pass.tape, x, weight(), bias());
}

}  // namespace esp::nn
