// Attention dispatch: selects one of three implementations. Few queries with many keys use the decoding kernel
// (attention_decode.cu). 16-bit types use cuDNN if it supports the shape. Everything else (fp32, fp64, odd head sizes,
// dropout, unusual offsets, blocks of keys) uses attention_tile.cu.
#include "esp/kernel/attention.h"

#include <algorithm>

#include "esp/kernel/cuda/attention_cudnn.h"
#include "esp/kernel/cuda/attention_tile.h"

namespace esp::kernel::cuda {
namespace {

bool aligned16(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* one) { return reinterpret_cast<uintptr_t>(one) % 16 == 0; });
}

}  // namespace

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype, const device::Stream& stream) {
  device::CudaQueue& queue = device::queue_of(stream);
  if (shape.batch * shape.heads * shape.num_queries == 0) return;
  const bool packs = aligned16({q, k, v, o});
  if (const int64_t bytes = packs ? decode_bytes(shape, dtype, queue) : 0; bytes > 0)
    return decode_forward(o, lse, q, k, v, queue.scratch(static_cast<size_t>(bytes)), shape, dtype, queue);
  if (const int64_t bytes = packs ? cudnn_forward_bytes(shape, dtype, queue) : -1; bytes >= 0)
    return cudnn_forward(o, lse, q, k, v, queue.scratch(static_cast<size_t>(bytes)), shape, dtype, queue);
  tile_forward(o, lse, q, k, v, shape, false, dtype, queue);
}

int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const device::Stream& stream) {
  return std::max(cudnn_backward_bytes(shape, dtype, device::queue_of(stream)), tile_backward_bytes(shape, dtype));
}

void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                        const device::Stream& stream) {
  device::CudaQueue& queue = device::queue_of(stream);
  if (aligned16({dq, dk, dv, d_o, o, q, k, v}) && cudnn_backward_bytes(shape, dtype, queue) >= 0)
    return cudnn_backward(dq, dk, dv, d_o, o, q, k, v, lse, workspace, shape, dtype, queue);
  const AttentionSums sums{dq, dk, dv, shape.q, shape.k, shape.v, false, false};
  tile_backward(sums, false, d_o, o, q, k, v, lse, workspace, shape, dtype, queue);
}

void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype, const device::Stream& stream) {
  tile_forward(o, lse, q, k, v, shape, true, dtype, device::queue_of(stream));
}

void attention_backward_block(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k,
                              const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                              const device::Stream& stream) {
  tile_backward(sums, true, d_o, o, q, k, v, lse, workspace, shape, dtype, device::queue_of(stream));
}

}  // namespace esp::kernel::cuda
