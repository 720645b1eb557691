// Access to one row of a batch buffer, and a writer that fills a row from the left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "esp/base/check.h"

namespace esp::data {

inline std::span<int32_t> batch_row(std::vector<int32_t>& buffer, int64_t row, int64_t width) {
  return std::span(buffer).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

// Decoder inputs for teacher forcing: `start`, then all but the last of the `count` real targets.
inline void shift_right(std::span<const int32_t> targets, int32_t count, int32_t start, int32_t padding,
                        std::span<int32_t> inputs) {
  std::fill(inputs.begin(), inputs.end(), padding);
  if (count == 0) return;
  inputs[0] = start;
  std::copy(targets.begin(), targets.begin() + count - 1, inputs.begin() + 1);
}

class RowWriter {
 public:
  explicit RowWriter(std::span<int32_t> row) : row_(row) {}

  void put(int32_t id) { take(1)[0] = id; }
  void put(std::span<const int32_t> ids) { std::copy(ids.begin(), ids.end(), take(ids.size()).begin()); }
  // Returns the next `count` positions, for the caller to fill.
  std::span<int32_t> take(size_t count) {
    ESP_CHECK(count <= row_.size() - used_,
              "batch row: got {} more ids; expected them to fit into {} positions, of which {} are used", count,
              row_.size(), used_);
    used_ += count;
    return row_.subspan(used_ - count, count);
  }
  // Fills the rest with padding and returns the number of real ids.
  int32_t finish(int32_t padding) {
    std::fill(row_.begin() + static_cast<int64_t>(used_), row_.end(), padding);
    return static_cast<int32_t>(used_);
  }

 private:
  std::span<int32_t> row_;
  size_t used_ = 0;
};

}  // namespace esp::data
