#include "esp/kernel/gemm.h"

#include "esp/kernel/elements.h"

namespace esp::kernel {

void check_gemm(const void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& o,
                DType dtype) {
  ESP_CHECK(m >= 0 && n >= 0 && k >= 0, "{}x{}x{}", m, n, k);
  ESP_CHECK(is_floating(dtype), "gemm of {}", name_of(dtype));
  ESP_CHECK(o.lda == 0 || o.lda >= (o.transpose_a ? m : k), "lda {} for {}x{}x{}", o.lda, m, n, k);
  ESP_CHECK(o.ldb == 0 || o.ldb >= (o.transpose_b ? k : n), "ldb {} for {}x{}x{}", o.ldb, m, n, k);
  ESP_CHECK(o.ldc == 0 || o.ldc >= n, "ldc {} for {}x{}x{}", o.ldc, m, n, k);
  ESP_CHECK(!(o.pre_activation_in && (o.bias || o.pre_activation)), "forward and backward epilogue at once");
  ESP_CHECK(m * n == 0 || (c && (k == 0 || (a && b))), "a null matrix");
}

void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype, const device::Stream& stream) {
  check_gemm(c, a, b, m, n, k, options, dtype);
  if (m == 0 || n == 0) return;
  const GemmStrides stride = strides_of(m, n, k, options);
  device::parallel_for(stream, m, 1, [&](int64_t begin, int64_t end) {
    const auto bytes = static_cast<int64_t>(size_of(dtype));
    GemmOptions slice = options;
    auto moved = [&](const void* from, int64_t elements) {
      return from ? static_cast<const char*>(from) + elements * bytes : nullptr;
    };
    slice.lda = options.transpose_a ? stride.a_col : stride.a_row;
    slice.pre_activation = const_cast<char*>(moved(options.pre_activation, begin * stride.c_row));
    slice.pre_activation_in = moved(options.pre_activation_in, begin * stride.c_row);
    ref::gemm(static_cast<char*>(c) + begin * stride.c_row * bytes, moved(a, begin * stride.a_row), b, end - begin, n,
              k, slice, dtype);
  });
}

}  // namespace esp::kernel
