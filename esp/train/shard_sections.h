// The position of a parameter shard in the global tensor. A shard has one box per section ([q | k | v] has three
// sections). In local memory the rows of all sections are interleaved. Checkpoints and pretrained weights use global
// positions; these functions convert between local and global positions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/nn/parameter.h"

namespace esp::train {

struct ShardSection {
  std::vector<int64_t> begin, extent;  // the section's box in the global tensor; empty: the whole tensor
  int64_t row = 0;                     // number of elements in one local row, over all sections
  int64_t first = 0, length = 0;       // range of this section within a local row

  // count_before: how many of the first `count` local elements belong to this section. index_of: the local index of
  // element i of this section.
  int64_t count_before(int64_t count) const;
  int64_t index_of(int64_t i) const { return i / length * row + first + i % length; }
  // True if elements [i, j) of this section are contiguous in local memory.
  bool is_contiguous(int64_t i, int64_t j) const { return length == row || i / length == (j - 1) / length; }
};
std::vector<ShardSection> shard_sections(const nn::Parameter& parameter);

// Converts local elements [begin, end) of a parameter to slices of the global tensor `name`, in section order. The
// elements are in `values`; if they are offloaded, `read` reads them. Elements that are not contiguous are copied into
// memory of `packing`; offloaded elements are read range by range.
std::vector<ckpt::TensorSlice> parameter_slices(const nn::Parameter& parameter, const std::string& name, int64_t begin,
                                                int64_t end, const tensor::Tensor& values,
                                                const tensor::Context& packing, const tensor::OffloadReader& read = {});
// The reverse: calls `read` for each slice and copies the values into `values`.
void read_slices(const nn::Parameter& parameter, const std::string& name, int64_t begin, int64_t end,
                 const tensor::Tensor& values, const std::function<void(const ckpt::TensorSlice&)>& read);
// Copies this rank's shard of `whole` [global_shape] into `values` [shape]; both have the same dtype.
void copy_shard(const nn::Parameter& parameter, const tensor::Tensor& whole, const tensor::Tensor& values);

}  // namespace esp::train
