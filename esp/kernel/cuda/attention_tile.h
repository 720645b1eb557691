// Espalier's own attention kernels: any floating type, any head size that fits, dropout, every mask, blocks of keys.
// Used where cuDNN does not apply, and for fp32 and fp64.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "esp/device/cuda/queue.h"
#include "esp/kernel/attention.h"

namespace esp::kernel::cuda {

void fill_int32(int32_t* to, int64_t count, int32_t value, cudaStream_t stream);

// onto: o (in the accumulation type) and lse hold what earlier blocks gave.
void tile_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                  bool onto, DType dtype, device::CudaQueue& queue);
// Gradients in storage type with the strides of q, k, v, or, `wide`, in the accumulation type as `sums` says.
// `dots` is [B, heads, num_queries] of the accumulation type, scratch.
void tile_backward(const AttentionSums& sums, bool wide, const void* d_o, const void* o, const void* q, const void* k,
                   const void* v, const void* lse, void* dots, const AttentionShape& shape, DType dtype,
                   device::CudaQueue& queue);
int64_t tile_backward_bytes(const AttentionShape& shape, DType dtype);

// Few queries, many keys: keys are divided among blocks, their results merged. Scratch for it; 0: not such a shape.
int64_t decode_bytes(const AttentionShape& shape, DType dtype, const device::CudaQueue& queue);
void decode_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                    const AttentionShape& shape, DType dtype, device::CudaQueue& queue);

}  // namespace esp::kernel::cuda
