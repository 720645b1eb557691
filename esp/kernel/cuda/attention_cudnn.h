// Attention with cuDNN's graph API. Supports 16-bit types and the usual causal masks, without dropout. Head sizes are
// multiples of 8 up to 256 (up to 128 for backward). Other shapes use attention_tile.cu.
//
// A plan is created when a shape is first used, which takes tens of milliseconds, and is cached per queue.
#pragma once

#include <cstdint>

#include "esp/device/cuda/queue.h"
#include "esp/kernel/attention.h"

namespace esp::kernel::cuda {

// Bytes of scratch memory that cuDNN needs for forward or backward. Returns −1 if cuDNN does not support the shape or
// is switched off (AttentionSettings).
int64_t cudnn_forward_bytes(const AttentionShape& shape, DType dtype, device::CudaQueue& queue);
int64_t cudnn_backward_bytes(const AttentionShape& shape, DType dtype, device::CudaQueue& queue);

void cudnn_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                   const AttentionShape& shape, DType dtype, device::CudaQueue& queue);
void cudnn_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                    const void* v, const void* lse, void* scratch, const AttentionShape& shape, DType dtype,
                    device::CudaQueue& queue);

}  // namespace esp::kernel::cuda
