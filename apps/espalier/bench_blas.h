// Another library's sgemm behind the shape of our own, opened at run time: any libblas (cblas_sgemm) or oneDNN
// (dnnl_sgemm). It uses as many threads as its own environment variables say.
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

// OpenBLAS takes a processor that is newer than itself for an ancient one, and is five times slower for it. What its
// OPENBLAS_CORETYPE had better be; empty where it knows the processor, or somebody has told it.
std::string better_blas_core(const std::string& path);

}  // namespace esp::app
