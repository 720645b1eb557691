// Builds attention as a cuDNN operation graph, in a form for which cuDNN has fused kernels.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <optional>

#include "esp/kernel/attention.h"
#include "esp/kernel/cuda/cudnn_graph.h"

namespace esp::kernel::cuda {

// Ids of the tensors that have an address (tensors that are not virtual).
enum AttentionTensor : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kScale,
  kLowest,
  kOne,
  kQueryLengths,
  kKeyLengths,
  kDo,
  kDq,
  kDk,
  kDv,
  kDots,
  kDqSums,
  kNumQueries,
  kNumKeys
};

// Diagonal of the causal mask. top_left: query i sees keys j ≤ i. bottom_right: query i sees keys j ≤ i + num_keys −
// num_queries.
enum class DiagonalMask : int64_t { none, top_left, bottom_right };

// 16-bit types. Both functions return nullopt if cuDNN has no kernel for the shape.
std::optional<CudnnPlan> forward_plan(const AttentionShape& shape, DType dtype, DiagonalMask mask,
                                      cudnnHandle_t handle);
std::optional<CudnnPlan> backward_plan(const AttentionShape& shape, DType dtype, DiagonalMask mask, bool deterministic,
                                       cudnnHandle_t handle);

}  // namespace esp::kernel::cuda
