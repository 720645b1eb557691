// Attention kernels of Espalier, for cases that cuDNN does not support. They accept any floating-point type, any head
// size that fits in shared memory, dropout, every mask, and blocks of keys.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "esp/device/cuda/queue.h"
#include "esp/kernel/attention.h"

namespace esp::kernel::cuda {

void fill_int32(int32_t* to, int64_t count, int32_t value, cudaStream_t stream);

// If merge_previous is set, o (in the accumulation type) and lse hold the result of earlier blocks of keys, and the
// kernel merges it with the new result.
void tile_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                  bool merge_previous, DType dtype, device::CudaQueue& queue);
// Writes the gradients to the buffers in `sums`, in storage type or, if `wide` is set, in the accumulation type. `dots`
// is scratch memory, [B, heads, num_queries] of the accumulation type.
void tile_backward(const AttentionSums& sums, bool wide, const void* d_o, const void* o, const void* q, const void* k,
                   const void* v, const void* lse, void* dots, const AttentionShape& shape, DType dtype,
                   device::CudaQueue& queue);
int64_t tile_backward_bytes(const AttentionShape& shape, DType dtype);

// Attention for few queries and many keys: keys are split among blocks, and the results are merged. decode_bytes is the
// size of the scratch memory, or 0 if the decoding kernel is not suitable for the shape.
int64_t decode_bytes(const AttentionShape& shape, DType dtype, const device::CudaQueue& queue);
void decode_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                    const AttentionShape& shape, DType dtype, device::CudaQueue& queue);

}  // namespace esp::kernel::cuda
