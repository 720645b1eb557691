// Wire type: the element type in which gradients are sent. They are sent unchanged, or cast into a buffer before a
// collective and back after it.
#pragma once

#include <string_view>

#include "esp/tensor/tensor.h"

namespace esp::sync {

// Parses `name`: auto (the storage type), fp32, bf16 or fp16. Throws UsageError for another name.
DType wire_type(std::string_view name, DType storage);

// Returns `flat` itself if its type is `wire`, otherwise a copy in that type (memory category buffer).
tensor::Tensor to_wire(const tensor::Context& context, const tensor::Tensor& flat, DType wire);
// Copies the result back into `flat`, unless both are the same memory.
void from_wire(const tensor::Context& context, const tensor::Tensor& wire, const tensor::Tensor& flat);

}  // namespace esp::sync
