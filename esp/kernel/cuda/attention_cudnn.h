// Attention through cuDNN's graph interface: 16-bit types, head sizes that are multiples of 8 up to 256 (128 for
// backward), no dropout, the usual causal masks. Unsupported shapes use attention_tile.cu.
//
// Plans are created when a shape is first used (tens of milliseconds) and cached per queue.
#pragma once

#include <cstdint>

#include "esp/device/cuda/queue.h"
#include "esp/kernel/attention.h"

namespace esp::kernel::cuda {

// Scratch the library's forward, or backward, needs for it; −1: it cannot, or the shape is better left to ours.
int64_t cudnn_forward_bytes(const AttentionShape& shape, DType dtype, device::CudaQueue& queue);
int64_t cudnn_backward_bytes(const AttentionShape& shape, DType dtype, device::CudaQueue& queue);

void cudnn_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                   const AttentionShape& shape, DType dtype, device::CudaQueue& queue);
void cudnn_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                    const void* v, const void* lse, void* scratch, const AttentionShape& shape, DType dtype,
                    device::CudaQueue& queue);

}  // namespace esp::kernel::cuda
