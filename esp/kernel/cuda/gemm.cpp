// GEMM with cuBLASLt. Library epilogues compute the bias, GELU (storing its argument for backward) and GELU's
// derivative. If the library has no algorithm, a plain GEMM and a second kernel are used: for other activations, for a
// derivative together with beta, for misaligned auxiliary matrices and for fp64 epilogues. With 16-bit types the second
// kernel adds one rounding.
#include "esp/kernel/gemm.h"

#include <algorithm>
#include <bit>

#include "esp/kernel/cuda/gemm_epilogue.h"
#include "esp/kernel/cuda/gemm_plan.h"
#include "esp/kernel/cuda/gemm_settings.h"

namespace esp::kernel::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_16F;
  }
}

// The largest power of two, at most 16, that divides all addresses: their common alignment in bytes.
template <typename... P>
int32_t alignment_of(const P*... pointers) {
  const uintptr_t all = (reinterpret_cast<uintptr_t>(pointers) | ... | 16);
  return int32_t{1} << std::countr_zero(all);
}

cublasLtEpilogue_t epilogue_of(const GemmOptions& o) {
  const bool bias = o.bias != nullptr;
  if (o.pre_activation_in) return CUBLASLT_EPILOGUE_DGELU;
  if (o.activation == Activation::relu) return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  if (o.activation == Activation::none) return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  if (o.pre_activation) return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

// Returns true if cuBLASLt has an epilogue for these options.
bool has_epilogue(const GemmOptions& o, DType dtype) {
  // cuBLASLt computes GELU only to fp32 accuracy.
  if (dtype == DType::f64 && o.activation == Activation::gelu) return false;
  if (o.pre_activation_in) return o.activation == Activation::gelu && o.beta == 0;
  if (o.activation == Activation::gelu) return true;
  return !o.pre_activation && (o.activation == Activation::none || o.activation == Activation::relu);
}

}  // namespace

void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype, const device::Stream& stream) {
  check_gemm(c, a, b, m, n, k, options, dtype);
  if (m == 0 || n == 0) return;
  if (k == 0) return apply_gemm_epilogue(c, nullptr, n, m, n, options, options.beta, dtype, stream);
  device::CudaQueue& queue = device::queue_of(stream);
  auto& plans = queue.get_or_create<GemmPlanCache>();

  GemmKey key;
  key.m = m, key.n = n, key.k = k;
  key.lda = options.lda ? options.lda : options.transpose_a ? m : k;
  key.ldb = options.ldb ? options.ldb : options.transpose_b ? k : n;
  key.ldc = options.ldc ? options.ldc : n;
  key.type_a = key.type_b = key.type_c = type_of(dtype);
  key.compute = dtype == DType::f64                 ? CUBLAS_COMPUTE_64F
                : dtype == DType::f32 && plans.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                    : CUBLAS_COMPUTE_32F;
  key.transpose_a = options.transpose_a, key.transpose_b = options.transpose_b;
  key.beta = options.beta != 0;
  key.ragged = options.ragged;
  void* aux = options.pre_activation_in ? const_cast<void*>(options.pre_activation_in) : options.pre_activation;
  key.alignment = alignment_of(c, a, b);
  GemmCall call{.d = c, .a = a, .b = b, .bias = options.bias, .aux = aux, .alpha = options.alpha, .beta = options.beta};

  GemmKey fused = key;
  fused.epilogue = epilogue_of(options);
  const bool aux_fits = !aux || (alignment_of(aux) == 16 && key.ldc % 8 == 0);
  const bool bias_fits = !options.bias || alignment_of(options.bias) == 16;
  if (has_epilogue(options, dtype) && aux_fits && bias_fits && plans.is_supported(fused))
    return plans.run(fused, call, queue.scratch(GemmPlanCache::kWorkspaceBytes), queue);

  // Runs a plain GEMM, then the epilogue kernel. With beta and a derivative, the GEMM writes to a separate buffer,
  // because the epilogue needs the old C.
  const bool separate = options.pre_activation_in && options.beta != 0;
  const size_t room = separate ? static_cast<size_t>(m * n) * size_of(dtype) : 0;
  auto* scratch = static_cast<std::byte*>(queue.scratch(GemmPlanCache::kWorkspaceBytes + room));
  if (separate) {
    key.ldc = n, key.beta = 0, call.beta = 0;
    call.d = scratch + GemmPlanCache::kWorkspaceBytes;
    key.alignment = alignment_of(a, b);
  }
  plans.run(key, call, scratch, queue);
  apply_gemm_epilogue(c, call.d, key.ldc, m, n, options, separate ? options.beta : 0, dtype, stream);
}

void set_gemm(const GemmSettings& settings, const device::Stream& stream) {
  auto& plans = device::queue_of(stream).get_or_create<GemmPlanCache>();
  plans.tune = settings.tune;
  plans.tf32 = settings.tf32;
  plans.fp8 = settings.fp8;
}

std::string gemm_choices(const device::Stream& stream) {
  return device::queue_of(stream).get_or_create<GemmPlanCache>().serialize();
}

void read_gemm_choices(std::string_view text, const device::Stream& stream) {
  device::queue_of(stream).get_or_create<GemmPlanCache>().deserialize(text);
}

}  // namespace esp::kernel::cuda
