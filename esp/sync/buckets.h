// Gradients cut into buckets: runs of the parameters' elements, in the order in which backward finishes them.
//
// Elements are numbered over the whole list, unit after unit. Bucket 0 is the last of them: parameters are taken in
// reverse order of registration until a bucket is full (the first sooner, so that communication begins early); one
// larger than the limit has a bucket of its own. A bucket is one contiguous run, so it is a view of gradients that lie
// contiguously. A pure function: every rank cuts alike.
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
// In another order of the parameters (by their place in the list): buckets are sets then, numbered through in that
// order, and no runs of the parameters' elements.
std::vector<Bucket> make_buckets(nn::ParameterList& parameters, std::span<const int32_t> order, int64_t first_bytes,
                                 int64_t bytes, DType dtype);

// Elements [begin, end) over all units, unit by unit.
std::vector<optim::Range> ranges_of(const nn::ParameterList& parameters, int64_t begin, int64_t end);

}  // namespace esp::sync
