// Gradient buckets: consecutive elements of the parameters, in the order in which backward completes them.
//
// Elements are numbered over the whole list, unit after unit. Parameters are taken in reverse order of registration, so
// bucket 0 covers the last elements. A bucket ends when it is full (the first is smaller, so that communication begins
// early); a parameter larger than the limit forms its own bucket. A bucket is one contiguous range and therefore a view
// of contiguous gradients. A pure function: the result is the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "esp/nn/parameter.h"
#include "esp/optim/optimizer.h"

namespace esp::sync {

struct Bucket {
  int64_t begin = 0, end = 0;  // elements, over all units
  std::vector<nn::Parameter*> parameters;
  int64_t count() const { return end - begin; }
};

std::vector<Bucket> make_buckets(nn::ParameterList& parameters, int64_t first_bytes, int64_t bytes, DType dtype);
// With another order of the parameters (indices in the list): buckets are then numbered in that order and are not
// contiguous ranges of the flat gradient buffer.
std::vector<Bucket> make_buckets(nn::ParameterList& parameters, std::span<const int32_t> order, int64_t first_bytes,
                                 int64_t bytes, DType dtype);

// Elements [begin, end) over all units, unit by unit.
std::vector<optim::UnitRange> ranges_of(const nn::ParameterList& parameters, int64_t begin, int64_t end);

}  // namespace esp::sync
