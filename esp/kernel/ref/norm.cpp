#include "esp/kernel/norm.h"

#include <cmath>
#include <vector>

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {

void norm_forward(void* y, void* mean, void* rstd, void* sum, const void* x, const void* residual, const void* gamma,
                  const void* beta, const NormShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const int64_t dim = shape.dim;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* row = static_cast<const T*>(x) + r * dim;
      if (residual) {
        T* to = static_cast<T*>(sum) + r * dim;
        const T* other = static_cast<const T*>(residual) + r * dim;
        for (int64_t c = 0; c < dim; ++c) to[c] = static_cast<T>(static_cast<A>(row[c]) + static_cast<A>(other[c]));
        row = to;
      }
      double middle = 0, square = 0;
      if (shape.kind == NormKind::layer) {
        for (int64_t c = 0; c < dim; ++c) middle += static_cast<A>(row[c]);
        middle /= static_cast<double>(dim);
        static_cast<A*>(mean)[r] = static_cast<A>(middle);
      }
      for (int64_t c = 0; c < dim; ++c) {
        const double from_middle = static_cast<A>(row[c]) - middle;
        square += from_middle * from_middle;
      }
      const double scale = 1 / std::sqrt(square / static_cast<double>(dim) + shape.eps);
      static_cast<A*>(rstd)[r] = static_cast<A>(scale);
      for (int64_t c = 0; c < dim; ++c) {
        double value = (static_cast<A>(row[c]) - middle) * scale * static_cast<A>(static_cast<const T*>(gamma)[c]);
        if (beta) value += static_cast<A>(static_cast<const T*>(beta)[c]);
        static_cast<T*>(y)[r * dim + c] = static_cast<T>(static_cast<A>(value));
      }
    }
  });
}

// With x̂ = (x − mean)·rstd and g = dy·γ: dx = rstd·(g − [mean of g] − x̂·[mean of g·x̂]). RMSNorm has no [mean of g].
void norm_backward_input(void* dx, const void* dy, const void* x, const void* mean, const void* rstd, const void* gamma,
                         const NormShape& shape, bool accumulate, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    const int64_t dim = shape.dim;
    for (int64_t r = 0; r < shape.rows; ++r) {
      const T* row = static_cast<const T*>(x) + r * dim;
      const T* from = static_cast<const T*>(dy) + r * dim;
      T* to = static_cast<T*>(dx) + r * dim;
      const double middle = mean ? static_cast<const A*>(mean)[r] : A{0}, scale = static_cast<const A*>(rstd)[r];
      auto normal = [&](int64_t c) { return (static_cast<A>(row[c]) - middle) * scale; };
      auto weighted = [&](int64_t c) {
        return double{static_cast<A>(from[c])} * static_cast<A>(static_cast<const T*>(gamma)[c]);
      };
      double sum = 0, dot = 0;
      for (int64_t c = 0; c < dim; ++c) {
        sum += weighted(c);
        dot += weighted(c) * normal(c);
      }
      sum = shape.kind == NormKind::layer ? sum / static_cast<double>(dim) : 0;
      dot /= static_cast<double>(dim);
      for (int64_t c = 0; c < dim; ++c) {
        const double before = accumulate ? static_cast<A>(to[c]) : A{0};
        to[c] = static_cast<T>(static_cast<A>(before + scale * (weighted(c) - sum - normal(c) * dot)));
      }
    }
  });
}

void norm_backward_weight(void* dgamma, void* dbeta, const void* dy, const void* x, const void* mean, const void* rstd,
                          const NormShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t c = 0; c < shape.dim; ++c) {
      double gamma_sum = static_cast<A>(static_cast<T*>(dgamma)[c]);
      double beta_sum = dbeta ? static_cast<A>(static_cast<T*>(dbeta)[c]) : A{0};
      for (int64_t r = 0; r < shape.rows; ++r) {
        const double from = static_cast<A>(static_cast<const T*>(dy)[r * shape.dim + c]);
        const double middle = mean ? static_cast<const A*>(mean)[r] : A{0};
        const double value = static_cast<A>(static_cast<const T*>(x)[r * shape.dim + c]);
        gamma_sum += from * (value - middle) * static_cast<const A*>(rstd)[r];
        beta_sum += from;
      }
      static_cast<T*>(dgamma)[c] = static_cast<T>(static_cast<A>(gamma_sum));
      if (dbeta) static_cast<T*>(dbeta)[c] = static_cast<T>(static_cast<A>(beta_sum));
    }
  });
}

}  // namespace esp::kernel::ref
