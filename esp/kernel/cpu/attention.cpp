// For now the reference on one thread.
#include "esp/kernel/attention.h"

namespace esp::kernel {

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype, const device::Stream&) {
  ref::attention_forward(o, lse, q, k, v, shape, dtype);
}

void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, void*, const AttentionShape& shape, DType dtype,
                        const device::Stream&) {
  ref::attention_backward(dq, dk, dv, d_o, o, q, k, v, lse, shape, dtype);
}

int64_t attention_workspace_bytes(const AttentionShape&, DType, int) {
  return 0;
}

}  // namespace esp::kernel
