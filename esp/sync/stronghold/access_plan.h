// Whether a layer whose values lie on the host is fetched before it runs, or read where it lies while it runs (direct
// host access: DeepPlan, Jeong 2023). Reading in place moves what is touched only, and as often as it is touched. Pure.
#pragma once

#include <cstdint>

namespace esp::sync {

struct AccessedLayer {
  uint64_t bytes = 0;          // of its values: what fetching moves
  uint64_t touched_bytes = 0;  // what reading in place moves
  double exec_ms = 0;          // computing, with the values on the device
};

struct Link {
  double bytes_per_ms = 1;
};

// Rows of a table, one per token, however many are the same.
inline uint64_t touched_by_lookup(int64_t tokens, int64_t dim, uint64_t element_bytes) {
  return static_cast<uint64_t>(tokens * dim) * element_bytes;
}
// A product with `rows` rows, computed `tile` rows at a time, reads the matrix once per tile.
inline uint64_t touched_by_product(int64_t rows, int64_t tile, uint64_t matrix_bytes) {
  return static_cast<uint64_t>((rows + tile - 1) / tile) * matrix_bytes;
}

inline double fetched_ms(const AccessedLayer& layer, const Link& link) {
  return static_cast<double>(layer.bytes) / link.bytes_per_ms + layer.exec_ms;
}
// A kernel that reads over the link waits for what it reads.
inline double direct_ms(const AccessedLayer& layer, const Link& link) {
  return static_cast<double>(layer.touched_bytes) / link.bytes_per_ms + layer.exec_ms;
}
inline bool read_in_place(const AccessedLayer& layer, const Link& link) {
  return direct_ms(layer, link) < fetched_ms(layer, link);
}

}  // namespace esp::sync
