// Where the elements of a divided parameter stand in the whole: one box per section ([q | k | v] has three), and how
// the elements here, row by row over all sections, go together with those of each box. Checkpoints and pretrained
// weights are of the whole; this is the way between.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/nn/parameter.h"

namespace esp::train {

struct Section {
  std::vector<int64_t> begin, extent;  // the box in the whole; empty: the whole
  int64_t row = 0;                     // elements of a row here, of all sections
  int64_t first = 0, length = 0;       // this section's of each row

  // How many of its elements are among the first `count` here, and where element i of it is.
  int64_t before(int64_t count) const;
  int64_t place(int64_t i) const { return i / length * row + first + i % length; }
  // Whether elements [i, j) of it lie together here.
  bool together(int64_t i, int64_t j) const { return length == row || i / length == (j - 1) / length; }
};
std::vector<Section> sections_of(const nn::Parameter& parameter);

// Elements [begin, end) of what is here of a parameter, which lie at `values` (or, beyond memory, are what `read`
// reads), as pieces of the whole called `name`, in the order of the sections. Those of a section that do not lie
// together are copied into memory of `packing`; or read one run after the other.
std::vector<ckpt::Piece> pieces_of(const nn::Parameter& parameter, const std::string& name, int64_t begin, int64_t end,
                                   const tensor::Tensor& values, const tensor::Context& packing,
                                   const tensor::ReadRun& read = {});
// The reverse: fills `values` by what `read` puts into each piece.
void fill_pieces(const nn::Parameter& parameter, const std::string& name, int64_t begin, int64_t end,
                 const tensor::Tensor& values, const std::function<void(const ckpt::Piece&)>& read);
// What is here of a parameter, out of all of it: `whole` [global_shape] in the type of `values` [shape].
void cut_out(const nn::Parameter& parameter, const tensor::Tensor& whole, const tensor::Tensor& values);

}  // namespace esp::train
