#include "esp/nn/moe/exchange.h"

namespace esp::nn {

using autograd::Variable;
using tensor::Tensor;

ExpertExchange::Parcel ExpertExchange::send(Pass&, const Variable& rows, const Tensor& counts) const {
  return {rows, counts, nullptr};
}

Variable ExpertExchange::receive(Pass&, Parcel& parcel) const {
  return parcel.rows;
}

Variable ExpertExchange::send_back(Pass&, const Parcel&, const Variable& rows) const {
  return rows;
}

autograd::Rows ExpertExchange::rows(Pass&, const Variable& stream) const {
  const int64_t sequences = stream.value().dim(0);
  return {sequences, stream.value().rows() / sequences, {}};
}

void ExpertExchange::add_up(Pass&, const Tensor&) const {}

}  // namespace esp::nn
