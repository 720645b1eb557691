// cuBLASLt plan of one GEMM shape: its descriptors and the chosen algorithm, cached per queue.
//
// The first GEMM of a shape times the algorithms the heuristic offers and keeps the fastest. During graph capture, or
// with `tune` off, the heuristic's first is used. GEMMs whose number of rows varies (`ragged`) share the heuristic's
// first for the next power of two of rows. Choices can be saved as text and restored in a later run; they apply to one
// library version and one GPU model, and other lines are skipped.
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

// Row-major C[m, n] = op(A)·op(B); `types` of A, B and C.
struct GemmKey {
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
  cudaDataType_t type_a = CUDA_R_32F, type_b = CUDA_R_32F, type_c = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t transpose_a = 0, transpose_b = 0, beta = 0, aux = 0, fast_sums = 0;
  int32_t alignment = 16;  // bytes, of every pointer
  int32_t ragged = 0;      // the rows, m or for a transposed A k, are of this call alone
  auto operator<=>(const GemmKey&) const = default;
};

struct GemmCall {
  void* d = nullptr;  // may be c
  const void *c = nullptr, *a = nullptr, *b = nullptr, *bias = nullptr;
  void* aux = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;  // on the device, for fp8
  double alpha = 1, beta = 0;
};

void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line);
#define ESP_CUBLAS_CHECK(call)                                                         \
  do {                                                                                 \
    if (const cublasStatus_t esp_status = (call); esp_status != CUBLAS_STATUS_SUCCESS) \
      ::esp::kernel::cuda::cublas_failed(esp_status, #call, __FILE__, __LINE__);       \
  } while (0)

class GemmPlans {
 public:
  GemmPlans();
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  // Whether the library has an algorithm for it. `workspace` is of kWorkspaceBytes.
  bool can(const GemmKey& key);
  void run(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue);

  std::string text() const;          // one line per shape
  void read(std::string_view text);  // UsageError when a line cannot be read
  bool tune = true;
  bool tf32 = false;  // products of f32 in tf32
  bool fp8 = false;   // linear maps in 8 bits

  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

 private:
  struct Plan;
  Plan& plan_of(const GemmKey& key);
  void run_ragged(const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue);
  std::vector<cublasLtMatmulAlgo_t> candidates_of(const Plan& plan, int64_t length_of_sums);
  void choose(Plan& plan, const GemmKey& key, const GemmCall& call, void* workspace, device::CudaQueue& queue);
  cublasStatus_t launch(Plan& plan, const GemmKey& key, const GemmCall& call, const cublasLtMatmulAlgo_t& algo,
                        void* workspace, cudaStream_t stream);
  std::string origin() const;  // library and GPU

  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmKey, Plan> plans_;
  std::map<GemmKey, std::array<uint64_t, 8>> remembered_;
};

}  // namespace esp::kernel::cuda
