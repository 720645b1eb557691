// Wire type of gradients: unchanged, or cast into a buffer before a collective and back after it.
#pragma once

#include <string_view>

#include "esp/tensor/tensor.h"

namespace esp::sync {

// auto: as stored. UsageError for an unknown name.
DType wire_type(std::string_view name, DType storage);

// `flat` itself, or a copy in the wire type, of category buffer.
tensor::Tensor to_wire(const tensor::Context& context, const tensor::Tensor& flat, DType wire);
// Copies back into `flat`, unless it is the same memory.
void from_wire(const tensor::Context& context, const tensor::Tensor& wire, const tensor::Tensor& flat);

}  // namespace esp::sync
