#include "esp/kernel/vocab_parallel_cross_entropy.h"

#include <cmath>
#include <limits>

#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {
namespace ref {

void vocab_cross_entropy_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                 int64_t rows, const VocabShard& part, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = static_cast<const T*>(logits) + r * part.row_stride;
      A top = -std::numeric_limits<A>::infinity();
      for (int64_t c = 0; c < part.num_classes; ++c) top = std::max(top, static_cast<A>(row[c]));
      double sum = 0;
      for (int64_t c = 0; c < part.num_classes; ++c) sum += std::exp(double{static_cast<A>(row[c])} - top);
      const int64_t own = targets[r] - part.first_class;
      const bool here = targets[r] >= 0 && own >= 0 && own < part.num_classes;
      static_cast<A*>(tops)[r] = top;
      static_cast<A*>(sums)[r] = static_cast<A>(sum);
      static_cast<A*>(picked)[r] = here ? static_cast<A>(row[own]) : A{0};
    }
  });
}

void vocab_cross_entropy_backward(void* logits, const void* tops, const void* sums, const int32_t* targets,
                                  double scale, int64_t rows, const VocabShard& part, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < part.num_classes; ++c) {
        T& logit = static_cast<T*>(logits)[r * part.row_stride + c];
        const double probability = std::exp(double{static_cast<A>(logit)} - static_cast<const A*>(tops)[r]) /
                                   double{static_cast<const A*>(sums)[r]};
        const double gradient = (probability - (part.first_class + c == targets[r] ? 1 : 0)) * scale;
        logit = static_cast<T>(targets[r] < 0 ? A{0} : static_cast<A>(gradient));
      }
  });
}

}  // namespace ref

// The functions below process a few numbers per row, so the CPU and ref share one implementation.

void vocab_cross_entropy_rescale(void* sums, const void* own_tops, const void* tops, int64_t rows, DType dtype,
                                 const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::vocab_cross_entropy_rescale(sums, own_tops, tops, rows, dtype, stream);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const double shift = double{static_cast<const A*>(own_tops)[r]} - static_cast<const A*>(tops)[r];
      static_cast<A*>(sums)[r] = static_cast<A>(double{static_cast<A*>(sums)[r]} * std::exp(shift));
    }
  });
}

void vocab_cross_entropy_losses(void* losses, const void* tops, const void* sums, const void* picked,
                                const int32_t* targets, int64_t rows, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::vocab_cross_entropy_losses(losses, tops, sums, picked, targets, rows, dtype, stream);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const double all = static_cast<const A*>(tops)[r] + std::log(double{static_cast<const A*>(sums)[r]});
      static_cast<A*>(losses)[r] = targets[r] < 0 ? A{0} : static_cast<A>(all - static_cast<const A*>(picked)[r]);
    }
  });
}

}  // namespace esp::kernel
