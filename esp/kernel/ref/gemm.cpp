#include "esp/kernel/gemm.h"

#include "esp/kernel/activation_math.h"
#include "esp/kernel/elements.h"

namespace esp::kernel::ref {
namespace {

template <typename T>
void gemm_as(T* c, const T* a, const T* b, int64_t m, int64_t n, int64_t k, const GemmOptions& o) {
  using A = Accumulator<T>;
  const GemmStrides stride = strides_of(m, n, k, o);
  const A alpha = static_cast<A>(o.alpha), beta = static_cast<A>(o.beta);
  auto at = [](const void* from, int64_t index) { return static_cast<A>(static_cast<const T*>(from)[index]); };
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      A sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += at(a, i * stride.a_row + p * stride.a_col) * at(b, p * stride.b_row + j * stride.b_col);
      sum *= alpha;
      const int64_t to = i * stride.c_row + j;
      const A before = o.beta == 0 ? A{0} : beta * at(c, to);
      with_activation(o.activation, [&](auto which) {
        if (o.pre_activation_in) {
          const double slope = activation_derivative<which()>(static_cast<double>(at(o.pre_activation_in, to)));
          c[to] = static_cast<T>(sum * static_cast<A>(slope) + before);
          return;
        }
        A value = sum + before;
        if (o.bias) value += at(o.bias, j);
        if (o.pre_activation) static_cast<T*>(o.pre_activation)[to] = static_cast<T>(value);
        c[to] = static_cast<T>(static_cast<A>(activation_value<which()>(static_cast<double>(value))));
      });
    }
}

}  // namespace

void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype) {
  check_gemm(c, a, b, m, n, k, options, dtype);
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>)
      gemm_as(static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b), m, n, k, options);
  });
}

}  // namespace esp::kernel::ref
