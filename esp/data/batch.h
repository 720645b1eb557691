// What one micro-step works on, as host memory. Buffers are made by the first fill of a shape and reused after.
#pragma once

#include <cstdint>
#include <vector>

namespace esp::data {

inline constexpr int32_t kIgnored = -1;  // a target that counts for nothing

struct BatchShape {
  int64_t T = 0;            // inputs per row
  int64_t T_decoder = 0;    // decoder inputs per row; 0 where there is no decoder
  int64_t num_targets = 0;  // targets per row: T, T_decoder, or 1 for a class
};

struct Batch {
  int64_t B = 0;
  BatchShape shape;
  std::vector<int32_t> inputs;           // [B, T]
  std::vector<int32_t> lengths;          // [B] real inputs at the head of each row; what follows is padding
  std::vector<int32_t> decoder_inputs;   // [B, T_decoder]
  std::vector<int32_t> decoder_lengths;  // [B]
  std::vector<int32_t> targets;          // [B, num_targets]; kIgnored where nothing is to be predicted
  std::vector<uint64_t> samples;         // [B] global sample index of each row
  int64_t counted = 0;                   // targets that are not kIgnored: what the loss is divided by
  uint64_t first_sample = 0;             // samples[0]

  // Sizes the buffers for `rows` rows; allocates only when they grow.
  void reshape(int64_t rows, const BatchShape& new_shape);
};

}  // namespace esp::data
