// Finds the origin of a non-finite loss (NaN or infinity). The parts of the model (stem, blocks, head) run forward one
// by one. The origin is the first part that has non-finite parameters, or that has finite parameters and a non-finite
// output.
//
// The result is the number of a part. The ranks take the minimum of their numbers: the first such part on any rank.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "esp/model/model.h"
#include "esp/train/rank_partition.h"

namespace esp::train {

using NonFinitePart = int64_t;
inline constexpr NonFinitePart kAllFinite = std::numeric_limits<int64_t>::max() - 1, kNotSearched = kAllFinite + 1;

class NonFiniteSearch {
 public:
  NonFiniteSearch(model::Model& model, const tensor::Context& context) : model_(&model), context_(context) {}
  // Runs one chunk of the model and returns its output. If a part is found, the chunk still runs to its end, because
  // other ranks may take part in its collectives.
  model::HiddenStates run_chunk(const ModelChunk& chunk, nn::ForwardContext& pass, const model::ModelBatch& batch,
                                model::HiddenStates state);
  NonFinitePart found() const { return found_; }

 private:
  template <typename F>
  void check_part(int64_t part, F&& output_finite);
  bool finite(const tensor::Tensor& x) const;
  bool values_finite(int64_t part) const;

  model::Model* model_;
  tensor::Context context_;
  NonFinitePart found_ = kAllFinite;
};
// Text for messages about what `rank` has found, such as «: the parameters of blocks.3 are not finite (rank 0)». Empty
// if the ranks did not search.
std::string describe(NonFinitePart found, const model::Model& model, int rank);

}  // namespace esp::train
