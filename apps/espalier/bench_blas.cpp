#include "apps/espalier/bench_blas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::app {

// The library is never unloaded: its threads may outlive this object.
Blas::Blas(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw UsageError(fmt::format("--against {}: cannot load the library: {}", path, dlerror()));
  cblas_ = reinterpret_cast<Cblas>(dlsym(library, "cblas_sgemm"));
  dnnl_ = reinterpret_cast<Dnnl>(dlsym(library, "dnnl_sgemm"));
  if (!cblas_ && !dnnl_)
    throw UsageError(fmt::format("--against: got {}; expected a library with cblas_sgemm or dnnl_sgemm", path));
}

void Blas::sgemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k,
                 const kernel::GemmOptions& options) const {
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  const kernel::GemmStrides stride = kernel::strides_of(m, n, k, options);
  const int64_t lda = options.transpose_a ? stride.a_col : stride.a_row;
  const int64_t ldb = options.transpose_b ? stride.b_col : stride.b_row;
  const auto alpha = static_cast<float>(options.alpha), beta = static_cast<float>(options.beta);
  if (dnnl_) {
    dnnl_(options.transpose_a ? 'T' : 'N', options.transpose_b ? 'T' : 'N', m, n, k, alpha,
          static_cast<const float*>(a), lda, static_cast<const float*>(b), ldb, beta, static_cast<float*>(c),
          stride.c_row);
  } else {
    cblas_(kRowMajor, options.transpose_a ? kTransposed : kPlain, options.transpose_b ? kTransposed : kPlain,
           static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, static_cast<const float*>(a),
           static_cast<int>(lda), static_cast<const float*>(b), static_cast<int>(ldb), beta, static_cast<float*>(c),
           static_cast<int>(stride.c_row));
  }
}

std::string openblas_core_override(const std::string& path) {
  void* const library = std::getenv("OPENBLAS_CORETYPE") ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return "";
  const auto core_name = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_corename"));
  const std::string_view taken_for = core_name ? core_name() : "";
  if (taken_for != "Prescott" && taken_for != "Core2") return "";
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return "";
}

}  // namespace esp::app
