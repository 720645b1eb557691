// Stubs for builds without cuda/. Never reached: a GPU stream cannot be created in such a build.
#include "esp/kernel/activation.h"
#include "esp/kernel/attention.h"
#include "esp/kernel/copy.h"
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/cross_entropy_part.h"
#include "esp/kernel/cuda/activation_slope.h"
#include "esp/kernel/cuda/attention_settings.h"
#include "esp/kernel/cuda/captured.h"
#include "esp/kernel/cuda/fp8_codes.h"
#include "esp/kernel/cuda/gemm_settings.h"
#include "esp/kernel/cuda/norm_backward.h"
#include "esp/kernel/cuda/weight_gemm.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/dropout.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/embedding.h"
#include "esp/kernel/gemm.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/on_cuda.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/peak.h"
#include "esp/kernel/quantize.h"
#include "esp/kernel/routing.h"
#include "esp/kernel/softmax.h"
#include "esp/kernel/weighted_sum.h"

namespace esp::kernel::cuda {

void activation_forward(void*, const void*, int64_t, Activation, DType, const device::Stream&) {
  no_cuda_body("activation_forward");
}
void activation_backward(void*, const void*, const void*, int64_t, Activation, bool, DType, const device::Stream&) {
  no_cuda_body("activation_backward");
}
void swiglu_forward(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("swiglu_forward");
}
void swiglu_backward(void*, const void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("swiglu_backward");
}
void attention_forward(void*, void*, const void*, const void*, const void*, const AttentionShape&, DType,
                       const device::Stream&) {
  no_cuda_body("attention_forward");
}
void attention_backward(void*, void*, void*, const void*, const void*, const void*, const void*, const void*,
                        const void*, void*, const AttentionShape&, DType, const device::Stream&) {
  no_cuda_body("attention_backward");
}
int64_t attention_workspace_bytes(const AttentionShape&, DType, const device::Stream&) {
  no_cuda_body("attention_workspace_bytes");
}
void attention_forward_block(void*, void*, const void*, const void*, const void*, const AttentionShape&, DType,
                             const device::Stream&) {
  no_cuda_body("attention_forward_block");
}
void attention_backward_block(const AttentionSums&, const void*, const void*, const void*, const void*, const void*,
                              const void*, void*, const AttentionShape&, DType, const device::Stream&) {
  no_cuda_body("attention_backward_block");
}
void copy_rows(void*, size_t, const void*, size_t, size_t, int64_t, const device::Stream&) {
  no_cuda_body("copy_rows");
}
void cross_entropy_forward(void*, void*, const void*, const int32_t*, int64_t, int64_t, int64_t, DType,
                           const device::Stream&) {
  no_cuda_body("cross_entropy_forward");
}
void cross_entropy_backward(void*, const void*, const int32_t*, double, int64_t, int64_t, int64_t, DType,
                            const device::Stream&) {
  no_cuda_body("cross_entropy_backward");
}
void cross_entropy_fused(void*, void*, const int32_t*, double, int64_t, int64_t, int64_t, DType,
                         const device::Stream&) {
  no_cuda_body("cross_entropy_fused");
}
void softmax_forward(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("softmax_forward");
}
void cross_entropy_part_forward(void*, void*, void*, const void*, const int32_t*, int64_t, const ClassPart&, DType,
                                const device::Stream&) {
  no_cuda_body("cross_entropy_part_forward");
}
void cross_entropy_part_backward(void*, const void*, const void*, const int32_t*, double, int64_t, const ClassPart&,
                                 DType, const device::Stream&) {
  no_cuda_body("cross_entropy_part_backward");
}
void subtract(void*, const void*, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("subtract");
}
void write_values(void*, WriteMode, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("write_values");
}
void multiply(void*, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("multiply");
}
void dropout(void*, const void*, const void*, const DropoutShape&, DropoutKey, DType, const device::Stream&) {
  no_cuda_body("dropout");
}
void fill(void*, double, int64_t, DType, const device::Stream&) {
  no_cuda_body("fill");
}
void cast(void*, DType, const void*, DType, int64_t, const device::Stream&) {
  no_cuda_body("cast");
}
void add(void*, const void*, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("add");
}
void scale(void*, double, int64_t, DType, const device::Stream&) {
  no_cuda_body("scale");
}
void add_bias(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("add_bias");
}
void add_column_sums(void*, const void*, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("add_column_sums");
}
double sum_of_squares(const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("sum_of_squares");
}
bool all_finite(const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("all_finite");
}
double sum(const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("sum");
}
void sum_to(double*, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("sum_to");
}
void shift(int32_t*, const int32_t*, int32_t, int64_t, const device::Stream&) {
  no_cuda_body("shift");
}
void cast_rows(void*, DType, int64_t, const void*, DType, int64_t, int64_t, int64_t, const device::Stream&) {
  no_cuda_body("cast_rows");
}
void cross_entropy_part_rescale(void*, const void*, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("cross_entropy_part_rescale");
}
void cross_entropy_part_losses(void*, const void*, const void*, const void*, const int32_t*, int64_t, DType,
                               const device::Stream&) {
  no_cuda_body("cross_entropy_part_losses");
}
void iota(int32_t*, int32_t, int64_t, const device::Stream&) {
  no_cuda_body("iota");
}
void transpose(void*, const void*, int64_t, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("transpose");
}
void fill_normal(void*, double, double, uint64_t, uint64_t, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("fill_normal");
}
void fill_uniform(void*, double, double, uint64_t, uint64_t, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("fill_uniform");
}
void embedding_forward(void*, const int32_t*, const void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                       DType, const device::Stream&) {
  no_cuda_body("embedding_forward");
}
void embedding_backward(void*, const int32_t*, const void*, int64_t, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("embedding_backward");
}
void position_backward(void*, const void*, int64_t, int64_t, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("position_backward");
}
void rotary(void*, const RotaryShape&, DType, const device::Stream&) {
  no_cuda_body("rotary");
}
void gemm(void*, const void*, const void*, int64_t, int64_t, int64_t, const GemmOptions&, DType,
          const device::Stream&) {
  no_cuda_body("gemm");
}
void norm_forward(void*, void*, void*, void*, const void*, const void*, const void*, const void*, const NormShape&,
                  DType, const device::Stream&) {
  no_cuda_body("norm_forward");
}
void norm_backward_input(void*, const void*, const void*, const void*, const void*, const void*, const NormShape&, bool,
                         DType, const device::Stream&) {
  no_cuda_body("norm_backward_input");
}
void norm_backward_weight(void*, void*, const void*, const void*, const void*, const void*, const NormShape&, DType,
                          const device::Stream&) {
  no_cuda_body("norm_backward_weight");
}
void adam_steps(std::span<const StepBuffers>, std::span<const AdamStep>, const device::Stream&) {
  no_cuda_body("adam_steps");
}
void activation_slope(void*, void*, bool, int64_t, int64_t, Activation, void*, bool, DType, const device::Stream&) {
  no_cuda_body("activation_slope");
}
void swiglu_again(void*, void*, int64_t, int64_t, DType, const device::Stream&) {
  no_cuda_body("swiglu_again");
}
void weight_gemm(const WeightGradients&, const void*, const void*, int64_t, int64_t, int64_t, DType,
                 const device::Stream&) {
  no_cuda_body("weight_gemm");
}
bool norm_backward(const NormGradients&, const void*, const void*, const void*, const void*, const void*,
                   const NormShape&, DType, const device::Stream&) {
  no_cuda_body("norm_backward");
}
void make_codes(const Fp8Codes&, const Fp8Source&, int64_t, int64_t, Fp8Scale*, Fp8, DType, const device::Stream&) {
  no_cuda_body("make_codes");
}
void update_fp8_scales(Fp8Scale*, int64_t, Fp8, const device::Stream&) {
  no_cuda_body("update_fp8_scales");
}
void gemm_fp8(void*, const void*, const Fp8Scale*, const void*, const Fp8Scale*, int64_t, int64_t, int64_t,
              const Fp8GemmOptions&, DType, const device::Stream&) {
  no_cuda_body("gemm_fp8");
}
KeptScale kept_scale(const void*, int, Fp8, const device::Stream&) {
  no_cuda_body("kept_scale");
}
void advance_scales(const device::Stream&) {
  no_cuda_body("advance_scales");
}
void save_scales(float*, std::span<const ScaleOwner>, const device::Stream&) {
  no_cuda_body("save_scales");
}
void load_scales(const float*, std::span<const ScaleOwner>, const device::Stream&) {
  no_cuda_body("load_scales");
}
bool wants_fp8(const device::Stream&) {
  no_cuda_body("wants_fp8");
}
void adam_step(const StepBuffers&, const AdamStep&, const device::Stream&) {
  no_cuda_body("adam_step");
}
void sgd_step(const StepBuffers&, const SgdStep&, const device::Stream&) {
  no_cuda_body("sgd_step");
}
double fma_peak(DType, const device::Stream&) {
  no_cuda_body("fma_peak");
}
void route_forward(void*, void*, int32_t*, void*, const void*, const RouteShape&, DType, const device::Stream&) {
  no_cuda_body("route_forward");
}
void route_backward(void*, const void*, const void*, const void*, const int32_t*, const RouteLosses&, const RouteShape&,
                    DType, const device::Stream&) {
  no_cuda_body("route_backward");
}
void route_losses(void*, RouteSums*, const void*, const void*, const int64_t*, int64_t, double, const RouteLosses&,
                  const RouteShape&, DType, const device::Stream&) {
  no_cuda_body("route_losses");
}
void count_choices(int64_t*, const int32_t*, int64_t, int64_t, int64_t, const device::Stream&) {
  no_cuda_body("count_choices");
}
void pick_choices(int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, const device::Stream&) {
  no_cuda_body("pick_choices");
}
void put_choices(int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, const device::Stream&) {
  no_cuda_body("put_choices");
}
void drop_overflow(int32_t*, const int32_t*, int64_t, int64_t, int64_t, int64_t, int64_t, const device::Stream&) {
  no_cuda_body("drop_overflow");
}
int64_t order_by_expert(int32_t*, int32_t*, int64_t*, const int32_t*, int64_t, int64_t, int64_t,
                        const device::Stream&) {
  no_cuda_body("order_by_expert");
}
void combine_forward(void*, const void*, const void*, const int32_t*, bool, const CombineShape&, DType,
                     const device::Stream&) {
  no_cuda_body("combine_forward");
}
void combine_backward(void*, void*, const void*, const void*, const void*, const int32_t*, const CombineShape&, DType,
                      const device::Stream&) {
  no_cuda_body("combine_backward");
}
void softmax_forward(void*, const SoftmaxShape&, DType, const device::Stream&) {
  no_cuda_body("softmax_forward");
}
void softmax_backward(void*, const void*, const SoftmaxShape&, DType, const device::Stream&) {
  no_cuda_body("softmax_backward");
}
void mask_of(uint8_t*, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("mask_of");
}
void apply_mask(void*, const void*, const uint8_t*, double, int64_t, DType, const device::Stream&) {
  no_cuda_body("apply_mask");
}
void weighted_sum(void*, std::span<const WeightedTerm>, int64_t, DType, const device::Stream&) {
  no_cuda_body("weighted_sum");
}
void quantize(void*, const void*, int64_t, DType, const BlockCode&, const device::Stream&) {
  no_cuda_body("quantize");
}
void dequantize(void*, const void*, int64_t, DType, const BlockCode&, const device::Stream&) {
  no_cuda_body("dequantize");
}
void dequantize_add(float*, const void*, int64_t, const BlockCode&, const device::Stream&) {
  no_cuda_body("dequantize_add");
}
void sum_of_squares_to(double*, bool, const void*, int64_t, DType, const device::Stream&) {
  no_cuda_body("sum_of_squares_to");
}
void set_attention(const AttentionSettings&, const device::Stream&) {
  no_cuda_body("set_attention");
}
void set_gemm(const GemmSettings&, const device::Stream&) {
  no_cuda_body("set_gemm");
}
std::string gemm_choices(const device::Stream&) {
  no_cuda_body("gemm_choices");
}
void read_gemm_choices(std::string_view, const device::Stream&) {
  no_cuda_body("read_gemm_choices");
}

}  // namespace esp::kernel::cuda
