// Another library's sgemm behind the interface of this program's, opened at run time: any libblas (cblas_sgemm) or
// oneDNN (dnnl_sgemm). Its environment variables set the number of threads.
#pragma once

#include <memory>
#include <string>

#include "esp/kernel/gemm.h"

namespace esp::app {

class Blas {
 public:
  explicit Blas(const std::string& path);  // UsageError when it cannot be opened or has no sgemm
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

// OpenBLAS falls back to a generic kernel on processors newer than itself, which is five times slower. Returns the
// OPENBLAS_CORETYPE to set; empty where it recognises the processor, or the variable is set.
std::string better_blas_core(const std::string& path);

}  // namespace esp::app
