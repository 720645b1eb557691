// sgemm of another library, loaded at run time, with the signature of kernel::gemm: any libblas (cblas_sgemm) or oneDNN
// (dnnl_sgemm). The library's own environment variables set its number of threads.
#pragma once

#include <memory>
#include <string>

#include "esp/kernel/gemm.h"

namespace esp::app {

class Blas {
 public:
  explicit Blas(const std::string& path);  // UsageError: the library cannot be loaded, or has no sgemm
  void sgemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k,
             const kernel::GemmOptions& options) const;

 private:
  using Cblas = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                         int lda, const float* b, int ldb, float beta, float* c, int ldc);
  using Dnnl = int (*)(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                       int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
  Cblas cblas_ = nullptr;
  Dnnl dnnl_ = nullptr;
};

// On a CPU that it does not recognise, OpenBLAS uses a generic kernel, which is five times slower. Returns the value to
// set for OPENBLAS_CORETYPE. Empty if OpenBLAS recognises the CPU or the variable is already set.
std::string openblas_core_override(const std::string& path);

}  // namespace esp::app
