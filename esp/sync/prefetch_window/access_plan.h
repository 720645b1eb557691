// Direct host access (DeepPlan, Jeong 2023): decides whether a layer whose weights are in host memory is fetched before
// it runs, or read over the link while it runs. Direct access moves only the bytes that are touched, once per touch.
// Pure.
#pragma once

#include <cstdint>

namespace esp::sync {

struct AccessedLayer {
  uint64_t bytes = 0;          // of its weights: moved by a fetch
  uint64_t touched_bytes = 0;  // moved by direct access
  double exec_ms = 0;          // compute time with the weights on the device
};

struct HostAccessRates {
  double bytes_per_ms = 1;
};

// Embedding table: one row per token, counting repeats.
inline uint64_t touched_by_lookup(int64_t tokens, int64_t dim, uint64_t element_bytes) {
  return static_cast<uint64_t>(tokens * dim) * element_bytes;
}
// A GEMM with `rows` rows, computed `tile` rows at a time, reads the matrix once per tile.
inline uint64_t touched_by_product(int64_t rows, int64_t tile, uint64_t matrix_bytes) {
  return static_cast<uint64_t>((rows + tile - 1) / tile) * matrix_bytes;
}

inline double fetched_ms(const AccessedLayer& layer, const HostAccessRates& link) {
  return static_cast<double>(layer.bytes) / link.bytes_per_ms + layer.exec_ms;
}
// A kernel with direct access waits for the link.
inline double direct_ms(const AccessedLayer& layer, const HostAccessRates& link) {
  return static_cast<double>(layer.touched_bytes) / link.bytes_per_ms + layer.exec_ms;
}
inline bool prefers_direct_access(const AccessedLayer& layer, const HostAccessRates& link) {
  return direct_ms(layer, link) < fetched_ms(layer, link);
}

}  // namespace esp::sync
