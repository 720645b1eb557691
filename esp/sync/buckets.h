// Gradient buckets, as in PyTorch DDP: each gradient bucket is a contiguous range of gradients that is all-reduced in
// one call. It is a view of the flat gradient buffer, so nothing is copied.
//
// Parameters are taken in reverse order of registration, the order in which backward completes their gradients.
// Therefore gradient bucket 0 covers the last elements. The first gradient bucket is smaller, so that communication
// begins early. A parameter larger than the limit forms a gradient bucket alone. Every rank computes the same gradient
// buckets, because they depend only on the arguments.
//
// Elements are numbered over the whole parameter list, unit after unit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "esp/nn/parameter.h"
#include "esp/optim/optimizer.h"

namespace esp::sync {

struct GradientBucket {
  int64_t begin = 0, end = 0;  // element range, counted over all units
  std::vector<nn::Parameter*> parameters;
  int64_t count() const { return end - begin; }
};

// `first_bytes`: size limit of the first gradient bucket; `bytes`: size limit of the others; `dtype`: gradient type.
std::vector<GradientBucket> make_gradient_buckets(nn::ParameterList& parameters, int64_t first_bytes, int64_t bytes,
                                                  DType dtype);
// As above, but the parameters are taken in the given order (indices in the list). Here a gradient bucket is not a
// contiguous range of the flat gradient buffer.
std::vector<GradientBucket> make_gradient_buckets(nn::ParameterList& parameters, std::span<const int32_t> order,
                                                  int64_t first_bytes, int64_t bytes, DType dtype);

// The elements [begin, end), counted over all units, as one range per unit.
std::vector<optim::UnitRange> unit_ranges(const nn::ParameterList& parameters, int64_t begin, int64_t end);

}  // namespace esp::sync
