// Attention as a cuDNN operation graph for which cuDNN has fused kernels.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <optional>

#include "esp/kernel/attention.h"
#include "esp/kernel/cuda/cudnn_graph.h"

namespace esp::kernel::cuda {

// Ids of the tensors with addresses.
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

// Diagonal of the causal mask: query i sees key j ≤ i, or j ≤ i + keys − queries.
enum class DiagonalMask : int64_t { none, top_left, bottom_right };

// None if cuDNN has no kernel for it. 16-bit types.
std::optional<CudnnPlan> forward_plan(const AttentionShape& shape, DType dtype, DiagonalMask mask,
                                      cudnnHandle_t handle);
std::optional<CudnnPlan> backward_plan(const AttentionShape& shape, DType dtype, DiagonalMask mask, bool deterministic,
                                       cudnnHandle_t handle);

}  // namespace esp::kernel::cuda
