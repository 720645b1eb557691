// Stubs for builds without cuda/. They are never reached, because such a build cannot create a GPU stream.
#include "esp/kernel/activation.h"
#include "esp/kernel/attention.h"
#include "esp/kernel/copy.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/cuda/activation_backward.h"
#include "esp/kernel/cuda/attention_settings.h"
#include "esp/kernel/cuda/device_scalars.h"
#include "esp/kernel/cuda/fp8_encode.h"
#include "esp/kernel/cuda/gemm_settings.h"
#include "esp/kernel/cuda/norm_backward.h"
#include "esp/kernel/cuda/weight_gemm.h"
#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/dropout.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/embedding.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/peak.h"
#include "esp/kernel/quantize.h"
#include "esp/kernel/routing.h"
#include "esp/kernel/softmax.h"
#include "esp/kernel/vocab_parallel_cross_entropy.h"
#include "esp/kernel/weighted_sum.h"

namespace esp::kernel::cuda {

void activation_forward(void*, const void*, int64_t, Activation, DType, const device::Stream&) {
  throw_no_cuda_kernel("activation_forward");
}
void activation_backward(void*, const void*, const void*, int64_t, Activation, bool, DType, const device::Stream&) {
  throw_no_cuda_kernel("activation_backward");
}
void swiglu_forward(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("swiglu_forward");
}
void swiglu_backward(void*, const void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("swiglu_backward");
}
void attention_forward(void*, void*, const void*, const void*, const void*, const AttentionShape&, DType,
                       const device::Stream&) {
  throw_no_cuda_kernel("attention_forward");
}
void attention_backward(void*, void*, void*, const void*, const void*, const void*, const void*, const void*,
                        const void*, void*, const AttentionShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("attention_backward");
}
int64_t attention_workspace_bytes(const AttentionShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("attention_workspace_bytes");
}
void attention_forward_block(void*, void*, const void*, const void*, const void*, const AttentionShape&, DType,
                             const device::Stream&) {
  throw_no_cuda_kernel("attention_forward_block");
}
void attention_backward_block(const AttentionSums&, const void*, const void*, const void*, const void*, const void*,
                              const void*, void*, const AttentionShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("attention_backward_block");
}
void copy_rows(void*, size_t, const void*, size_t, size_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("copy_rows");
}
void cross_entropy_forward(void*, void*, const void*, const int32_t*, int64_t, int64_t, int64_t, DType,
                           const device::Stream&) {
  throw_no_cuda_kernel("cross_entropy_forward");
}
void cross_entropy_backward(void*, const void*, const int32_t*, double, int64_t, int64_t, int64_t, DType,
                            const device::Stream&) {
  throw_no_cuda_kernel("cross_entropy_backward");
}
void cross_entropy_fused(void*, void*, const int32_t*, double, int64_t, int64_t, int64_t, DType,
                         const device::Stream&) {
  throw_no_cuda_kernel("cross_entropy_fused");
}
void softmax_forward(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("softmax_forward");
}
void vocab_cross_entropy_forward(void*, void*, void*, const void*, const int32_t*, int64_t, const VocabShard&, DType,
                                 const device::Stream&) {
  throw_no_cuda_kernel("vocab_cross_entropy_forward");
}
void vocab_cross_entropy_backward(void*, const void*, const void*, const int32_t*, double, int64_t, const VocabShard&,
                                  DType, const device::Stream&) {
  throw_no_cuda_kernel("vocab_cross_entropy_backward");
}
void subtract(void*, const void*, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("subtract");
}
void write_values(void*, WriteMode, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("write_values");
}
void multiply(void*, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("multiply");
}
void dropout(void*, const void*, const void*, const DropoutShape&, DropoutKey, DType, const device::Stream&) {
  throw_no_cuda_kernel("dropout");
}
void fill(void*, double, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("fill");
}
void cast(void*, DType, const void*, DType, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("cast");
}
void add(void*, const void*, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("add");
}
void scale(void*, double, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("scale");
}
void add_bias(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("add_bias");
}
void add_column_sums(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("add_column_sums");
}
double sum_of_squares(const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("sum_of_squares");
}
bool all_finite(const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("all_finite");
}
double sum(const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("sum");
}
void sum_to(double*, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("sum_to");
}
void shift(int32_t*, const int32_t*, int32_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("shift");
}
void cast_rows(void*, DType, int64_t, const void*, DType, int64_t, int64_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("cast_rows");
}
void vocab_cross_entropy_rescale(void*, const void*, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("vocab_cross_entropy_rescale");
}
void vocab_cross_entropy_losses(void*, const void*, const void*, const void*, const int32_t*, int64_t, DType,
                                const device::Stream&) {
  throw_no_cuda_kernel("vocab_cross_entropy_losses");
}
void iota(int32_t*, int32_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("iota");
}
void transpose(void*, const void*, int64_t, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("transpose");
}
void fill_normal(void*, double, double, uint64_t, uint64_t, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("fill_normal");
}
void fill_uniform(void*, double, double, uint64_t, uint64_t, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("fill_uniform");
}
void embedding_forward(void*, const int32_t*, const void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                       DType, const device::Stream&) {
  throw_no_cuda_kernel("embedding_forward");
}
void embedding_backward(void*, const int32_t*, const void*, int64_t, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("embedding_backward");
}
void position_backward(void*, const void*, int64_t, int64_t, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("position_backward");
}
void rotary(void*, const RotaryShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("rotary");
}
void gemm(void*, const void*, const void*, int64_t, int64_t, int64_t, const GemmOptions&, DType,
          const device::Stream&) {
  throw_no_cuda_kernel("gemm");
}
void norm_forward(void*, void*, void*, void*, const void*, const void*, const void*, const void*, const NormShape&,
                  DType, const device::Stream&) {
  throw_no_cuda_kernel("norm_forward");
}
void norm_backward_input(void*, const void*, const void*, const void*, const void*, const void*, const NormShape&, bool,
                         DType, const device::Stream&) {
  throw_no_cuda_kernel("norm_backward_input");
}
void norm_backward_weight(void*, void*, const void*, const void*, const void*, const void*, const NormShape&, DType,
                          const device::Stream&) {
  throw_no_cuda_kernel("norm_backward_weight");
}
void multi_tensor_adam_step(std::span<const StepBuffers>, std::span<const AdamStep>, const device::Stream&) {
  throw_no_cuda_kernel("multi_tensor_adam_step");
}
void activation_backward_fused(void*, void*, bool, int64_t, int64_t, Activation, void*, bool, DType,
                               const device::Stream&) {
  throw_no_cuda_kernel("activation_backward_fused");
}
void swiglu_backward_fused(void*, void*, int64_t, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("swiglu_backward_fused");
}
void weight_gemm(const WeightGradients&, const void*, const void*, int64_t, int64_t, int64_t, DType,
                 const device::Stream&) {
  throw_no_cuda_kernel("weight_gemm");
}
bool norm_backward(const NormGradients&, const void*, const void*, const void*, const void*, const void*,
                   const NormShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("norm_backward");
}
void encode_fp8(const Fp8Outputs&, const Fp8Source&, int64_t, int64_t, Fp8Scale*, Fp8, DType, const device::Stream&) {
  throw_no_cuda_kernel("encode_fp8");
}
void update_fp8_scales(Fp8Scale*, int64_t, Fp8, const device::Stream&) {
  throw_no_cuda_kernel("update_fp8_scales");
}
void gemm_fp8(void*, const void*, const Fp8Scale*, const void*, const Fp8Scale*, int64_t, int64_t, int64_t,
              const Fp8GemmOptions&, DType, const device::Stream&) {
  throw_no_cuda_kernel("gemm_fp8");
}
ScaleHandle find_scale(const void*, int, Fp8, const device::Stream&) {
  throw_no_cuda_kernel("find_scale");
}
void update_scales(const device::Stream&) {
  throw_no_cuda_kernel("update_scales");
}
void save_scales(float*, std::span<const ScaleKey>, const device::Stream&) {
  throw_no_cuda_kernel("save_scales");
}
void load_scales(const float*, std::span<const ScaleKey>, const device::Stream&) {
  throw_no_cuda_kernel("load_scales");
}
bool uses_fp8(const device::Stream&) {
  throw_no_cuda_kernel("uses_fp8");
}
void adam_step(const StepBuffers&, const AdamStep&, const device::Stream&) {
  throw_no_cuda_kernel("adam_step");
}
void sgd_step(const StepBuffers&, const SgdStep&, const device::Stream&) {
  throw_no_cuda_kernel("sgd_step");
}
double fma_peak(DType, const device::Stream&) {
  throw_no_cuda_kernel("fma_peak");
}
void route_forward(void*, void*, int32_t*, void*, const void*, const RouteShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("route_forward");
}
void route_backward(void*, const void*, const void*, const void*, const int32_t*, const RouteLosses&, const RouteShape&,
                    DType, const device::Stream&) {
  throw_no_cuda_kernel("route_backward");
}
void route_losses(void*, RouteSums*, const void*, const void*, const int64_t*, int64_t, double, const RouteLosses&,
                  const RouteShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("route_losses");
}
void count_choices(int64_t*, const int32_t*, int64_t, int64_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("count_choices");
}
void gather_choices(int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("gather_choices");
}
void scatter_choices(int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("scatter_choices");
}
void drop_overflow(int32_t*, const int32_t*, int64_t, int64_t, int64_t, int64_t, int64_t, const device::Stream&) {
  throw_no_cuda_kernel("drop_overflow");
}
int64_t order_by_expert(int32_t*, int32_t*, int64_t*, const int32_t*, int64_t, int64_t, int64_t,
                        const device::Stream&) {
  throw_no_cuda_kernel("order_by_expert");
}
void combine_forward(void*, const void*, const void*, const int32_t*, bool, const CombineShape&, DType,
                     const device::Stream&) {
  throw_no_cuda_kernel("combine_forward");
}
void combine_backward(void*, void*, const void*, const void*, const void*, const int32_t*, const CombineShape&, DType,
                      const device::Stream&) {
  throw_no_cuda_kernel("combine_backward");
}
void softmax_forward(void*, const SoftmaxShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("softmax_forward");
}
void softmax_backward(void*, const void*, const SoftmaxShape&, DType, const device::Stream&) {
  throw_no_cuda_kernel("softmax_backward");
}
void nonzero_mask(uint8_t*, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("nonzero_mask");
}
void apply_mask(void*, const void*, const uint8_t*, double, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("apply_mask");
}
void weighted_sum(void*, std::span<const WeightedTerm>, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("weighted_sum");
}
void quantize(void*, const void*, int64_t, DType, const BlockFormat&, const device::Stream&) {
  throw_no_cuda_kernel("quantize");
}
void dequantize(void*, const void*, int64_t, DType, const BlockFormat&, const device::Stream&) {
  throw_no_cuda_kernel("dequantize");
}
void dequantize_add(float*, const void*, int64_t, const BlockFormat&, const device::Stream&) {
  throw_no_cuda_kernel("dequantize_add");
}
void sum_of_squares_to(double*, bool, const void*, int64_t, DType, const device::Stream&) {
  throw_no_cuda_kernel("sum_of_squares_to");
}
void set_attention(const AttentionSettings&, const device::Stream&) {
  throw_no_cuda_kernel("set_attention");
}
void set_gemm(const GemmSettings&, const device::Stream&) {
  throw_no_cuda_kernel("set_gemm");
}
std::string gemm_choices(const device::Stream&) {
  throw_no_cuda_kernel("gemm_choices");
}
void read_gemm_choices(std::string_view, const device::Stream&) {
  throw_no_cuda_kernel("read_gemm_choices");
}

}  // namespace esp::kernel::cuda
