// Direct host access (DeepPlan, Jeong 2023): decides how a layer uses weights in host memory. Either the weights are
// fetched before the layer runs, or the layer reads them over the link while it runs. Direct access transfers only the
// bytes that the layer touches, once per touch. Pure functions.
#pragma once

#include <cstdint>

namespace esp::sync {

struct AccessedLayer {
  uint64_t bytes = 0;          // bytes of the weights, which a fetch transfers
  uint64_t touched_bytes = 0;  // bytes that direct access transfers: each touch counts
  double exec_ms = 0;          // compute time with the weights on the device
};

struct HostAccessRates {
  double bytes_per_ms = 1;
};

// Bytes that an embedding look-up touches: one row per token, repeated tokens included.
inline uint64_t touched_by_lookup(int64_t tokens, int64_t dim, uint64_t element_bytes) {
  return static_cast<uint64_t>(tokens * dim) * element_bytes;
}
// Bytes that a GEMM with `rows` rows touches: it computes `tile` rows at a time and reads the weight matrix once per
// tile.
inline uint64_t touched_by_gemm(int64_t rows, int64_t tile, uint64_t matrix_bytes) {
  return static_cast<uint64_t>((rows + tile - 1) / tile) * matrix_bytes;
}

inline double fetched_ms(const AccessedLayer& layer, const HostAccessRates& link) {
  return static_cast<double>(layer.bytes) / link.bytes_per_ms + layer.exec_ms;
}
// Time of a layer with direct access, where the GPU kernel waits for the link.
inline double direct_ms(const AccessedLayer& layer, const HostAccessRates& link) {
  return static_cast<double>(layer.touched_bytes) / link.bytes_per_ms + layer.exec_ms;
}
inline bool prefers_direct_access(const AccessedLayer& layer, const HostAccessRates& link) {
  return direct_ms(layer, link) < fetched_ms(layer, link);
}

}  // namespace esp::sync
