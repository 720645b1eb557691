#include "esp/nn/layers/linear.h"

#include "esp/autograd/functions/linear.h"
#include "esp/nn/regions.h"

namespace esp::nn {

Linear::Linear(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init)
    : Linear(list, name, {in, out}, bias, init, Kind::whole, {}, {}) {}

Linear::Linear(ParameterList& list, const std::string& name, const tensor::Shape& shape, bool bias, Init init,
               Kind kind, const Cut& of_weight, const Cut& of_bias)
    : kind_(kind), weight_(list.add(name + ".weight", shape, init, true, of_weight)) {
  if (bias) bias_ = &list.add(name + ".bias", {shape.dim(1)}, Init::zeros(), false, of_bias);
}

Linear Linear::by_columns(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init,
                          std::vector<int64_t> sections, int64_t grain) {
  return {list, name, {in, out}, bias, init, Kind::columns, {1, sections, grain}, {0, sections, grain}};
}

Linear Linear::by_rows(ParameterList& list, const std::string& name, int64_t in, int64_t out, bool bias, Init init,
                       int64_t grain) {
  return {list, name, {in, out}, bias, init, Kind::rows, {0, {}, grain}, {}};
}

autograd::Variable Linear::operator()(Pass& pass, const autograd::Variable& x) const {
  switch (kind_) {
    case Kind::columns:
      return pass.regions->columns(pass, x, weight(), bias());
    case Kind::rows:
      return pass.regions->rows(pass, x, weight(), bias());
    case Kind::whole:
      break;
  }
  return autograd::linear(*pass.tape, x, weight(), bias());
}

}  // namespace esp::nn
