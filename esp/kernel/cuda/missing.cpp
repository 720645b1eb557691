// Kernels that have no body on a GPU yet: each says so by name. A body that is written takes its line away from here.
#include "esp/kernel/activation.h"
#include "esp/kernel/attention.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/cross_entropy_part.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/dropout.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/embedding.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/on_cuda.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/routing.h"
#include "esp/kernel/softmax.h"
#include "esp/kernel/weighted_sum.h"

namespace esp::kernel::cuda {

void route_forward(void*, void*, int32_t*, void*, const void*, const RouteShape&, DType, const device::Stream&) {
  no_cuda_body("route_forward");
}
void route_backward(void*, const void*, const void*, const void*, const int32_t*, const RouteLosses&, const RouteShape&,
                    DType, const device::Stream&) {
  no_cuda_body("route_backward");
}
void combine_forward(void*, const void*, const void*, const int32_t*, bool, const CombineShape&, DType,
                     const device::Stream&) {
  no_cuda_body("combine_forward");
}
void combine_backward(void*, void*, const void*, const void*, const void*, const int32_t*, const CombineShape&, DType,
                      const device::Stream&) {
  no_cuda_body("combine_backward");
}

}  // namespace esp::kernel::cuda
