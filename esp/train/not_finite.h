// Where a loss that is not finite comes from: the parts of a model are run one after the other, forward alone, and the
// first with something that is no finite number is told: its values, or, with finite ones, what it makes of its input.
//
// What is found is a number, so that ranks can agree on the least of theirs: the first part of any rank.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "esp/model/model.h"

namespace esp::train {

using FoundNotFinite = int64_t;
inline constexpr FoundNotFinite kAllFinite = std::numeric_limits<int64_t>::max() - 1, kNotLooked = kAllFinite + 1;

// The whole model is here. Looks at every part whatever it finds, since others may be taking part in what it runs.
FoundNotFinite first_not_finite(model::Model& model, nn::Pass& pass, const model::Batch& batch,
                                const tensor::Context& context);
// «: values of blocks.3 are not (rank 0)», or what else a rank found; empty where nobody looked.
std::string describe(FoundNotFinite found, model::Model& model, int rank);

}  // namespace esp::train
