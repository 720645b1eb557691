// The input of one micro-step in host memory. The first fill of a shape allocates the buffers; later fills reuse them.
#pragma once

#include <cstdint>
#include <vector>

namespace esp::data {

inline constexpr int32_t kIgnoreIndex = -1;  // targets with this id are excluded from the loss

struct BatchShape {
  int64_t T = 0;            // inputs per row
  int64_t T_decoder = 0;    // decoder inputs per row; 0 without a decoder
  int64_t num_targets = 0;  // targets per row: T, T_decoder, or 1 (classification)
};

struct Batch {
  int64_t B = 0;
  BatchShape shape;
  std::vector<int32_t> inputs;           // [B, T]
  std::vector<int32_t> lengths;          // [B] number of real inputs at the start of each row; the rest is padding
  std::vector<int32_t> decoder_inputs;   // [B, T_decoder]
  std::vector<int32_t> decoder_lengths;  // [B]
  std::vector<int32_t> targets;          // [B, num_targets]; kIgnoreIndex at positions without a target
  std::vector<uint64_t> samples;         // [B] global sample index of each row
  int64_t counted = 0;                   // number of targets that are not kIgnoreIndex: the divisor of the loss
  uint64_t first_sample = 0;             // samples[0]

  // Sizes the buffers for `rows` rows; allocates only when they grow.
  void reshape(int64_t rows, const BatchShape& new_shape);
};

}  // namespace esp::data
