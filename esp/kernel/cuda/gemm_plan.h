// Autotuned cuBLASLt plans. A plan holds the descriptors and the chosen algorithm of one GEMM shape. Plans are cached
// per queue.
//
// The first GEMM of a shape times the algorithms that cuBLASLt's heuristic offers, and keeps the fastest. The
// heuristic's first algorithm is used without timing in three cases: during CUDA graph capture, with `tune` off, and
// for GEMMs with a varying number of rows (`ragged`). A ragged GEMM rounds the number of rows up to a power of two and
// uses the plan for that number.
//
// Choices can be saved as text and restored when training starts again. A line of text applies to one library version
// and one GPU model. Lines of other versions or models are skipped.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/dtype.h"
#include "esp/device/cuda/queue.h"

namespace esp::kernel::cuda {

// Identifies a GEMM shape: row-major C[m, n] = op(A)·op(B), the types of A, B and C, and the options that affect the
// plan.
struct GemmKey {
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  cudaDataType_t type_a = CUDA_R_32F, type_b = CUDA_R_32F, type_c = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t transpose_a = 0, transpose_b = 0, beta = 0, aux = 0, fast_sums = 0;
  int32_t alignment = 16;  // common alignment of all pointers, in bytes
  int32_t ragged = 0;      // the number of rows (m, or k if A is transposed) varies between calls
  auto operator<=>(const GemmKey&) const = default;
};

struct GemmCall {
  void* d = nullptr;  // the result; may equal c
  const void *c = nullptr, *a = nullptr, *b = nullptr, *bias = nullptr;
  void* aux = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;  // fp8 decoding factors; device pointers
  double alpha = 1, beta = 0;
};

void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line);
#define ESP_CUBLAS_CHECK(call)                                                         \
  do {                                                                                 \
    if (const cublasStatus_t esp_status = (call); esp_status != CUBLAS_STATUS_SUCCESS) \
      ::esp::kernel::cuda::cublas_failed(esp_status, #call, __FILE__, __LINE__);       \
  } while (0)

class GemmPlanCache {
 public:
  GemmPlanCache();
  ~GemmPlanCache();
  GemmPlanCache(const GemmPlanCache&) = delete;
  GemmPlanCache& operator=(const GemmPlanCache&) = delete;

  // is_supported returns whether cuBLASLt has an algorithm for the key. `workspace` of run has kWorkspaceBytes bytes.
  bool is_supported(const GemmKey& key);
  void run(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue);

  std::string serialize() const;            // one line per tuned shape
  void deserialize(std::string_view text);  // throws UsageError if a line cannot be parsed
  bool tune = true;
  bool tf32 = false;  // f32 GEMMs use tf32
  bool fp8 = false;   // linear layers use fp8

  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

 private:
  struct Plan;
  Plan& plan_of(const GemmKey& key);
  void run_ragged(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue);
  std::vector<cublasLtMatmulAlgo_t> candidates_of(const Plan& plan, int64_t length_of_sums);
  void choose(Plan& plan, const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue);
  cublasStatus_t launch(Plan& plan, const GemmKey& key, const GemmCall& call, const cublasLtMatmulAlgo_t& algo,
                        void* workspace, cudaStream_t stream);
  std::string origin() const;  // the library version and GPU model to which choices apply

  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmKey, Plan> plans_;
  std::map<GemmKey, std::array<uint64_t, 8>> restored_;
};

}  // namespace esp::kernel::cuda
