#include "esp/data/batch.h"

#include "esp/base/check.h"

namespace esp::data {

void Batch::reshape(int64_t rows, const BatchShape& new_shape) {
  ESP_CHECK(rows > 0 && new_shape.T > 0);
  B = rows;
  shape = new_shape;
  auto n = static_cast<size_t>(rows);
  inputs.resize(n * static_cast<size_t>(shape.T));
  lengths.resize(n);
  decoder_inputs.resize(n * static_cast<size_t>(shape.T_decoder));
  decoder_lengths.resize(shape.T_decoder > 0 ? n : 0);
  targets.resize(n * static_cast<size_t>(shape.num_targets));
  samples.resize(n);
  counted = 0;
}

}  // namespace esp::data
