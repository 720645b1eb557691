// Where a loss that is not finite comes from: the parts of a model (stem, blocks, head) are run one after the other,
// forward alone, and the first with something that is no finite number is told: its values, or, with finite ones, what
// it makes of its input.
//
// What is found is a number, so that ranks can agree on the least of theirs: the first part of any rank.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "esp/model/model.h"
#include "esp/train/split.h"

namespace esp::train {

using FoundNotFinite = int64_t;
inline constexpr FoundNotFinite kAllFinite = std::numeric_limits<int64_t>::max() - 1, kNotLooked = kAllFinite + 1;

class NotFiniteSearch {
 public:
  NotFiniteSearch(model::Model& model, const tensor::Context& context) : model_(&model), context_(context) {}
  // One piece of the model, and what it hands on to the next. Goes on whatever it finds: others may be taking part in
  // what it runs.
  model::HiddenStates through(const Piece& piece, nn::ForwardContext& pass, const model::ModelBatch& batch,
                              model::HiddenStates state);
  FoundNotFinite found() const { return found_; }

 private:
  template <typename F>
  void look_at(int64_t part, F&& output_finite);
  bool finite(const tensor::Tensor& x) const;
  bool values_finite(int64_t part) const;

  model::Model* model_;
  tensor::Context context_;
  FoundNotFinite found_ = kAllFinite;
};
// «: values of blocks.3 are not (rank 0)», or what else a rank found; empty where nobody looked.
std::string describe(FoundNotFinite found, const model::Model& model, int rank);

}  // namespace esp::train
