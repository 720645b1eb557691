// Softmax and cross entropy. Each row is read twice: from memory for log Σ exp, and from L2 for the gradient.
//
// The first read processes blocks that stay in L1. It finds the largest element of a block before it adds the block's
// exponentials. If the maximum grows, it rescales the sum of the earlier blocks.
#include "esp/kernel/cross_entropy.h"
#include "esp/kernel/cuda_dispatch.h"

#include "esp/kernel/vocab_parallel_cross_entropy.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/activation-inl.h"
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

constexpr int64_t kBlock = 2048;

// Σ exp(x) of a row, stored as exp(top)·sum.
template <typename T>
struct RowTotal {
  Accumulator<T> top = -std::numeric_limits<Accumulator<T>>::infinity();
  double sum = 0;
  double log() const { return static_cast<double>(top) + std::log(sum); }
};

template <typename T>
HWY_INLINE Accumulator<T> largest(const T* x, int64_t count) {
  const Tag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<Accumulator<T>>::infinity());
  Vec<T> tops[4] = {lowest, lowest, lowest, lowest};
  each_vector_interleaved<T>(count, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
    auto v = lanes.load(x + i);
    if constexpr (std::is_same_v<decltype(lanes), PartialVector>)
      v = hn::IfThenElse(hn::FirstN(d, lanes.count), v, lowest);
    // ignores NaNs: on x86, Max returns its second operand if one operand is a NaN
    tops[turn()] = hn::Max(v, tops[turn()]);
  });
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(tops[0], tops[1]), hn::Max(tops[2], tops[3]))));
}

// A block that contains only -inf adds 0. A NaN in x makes the sum NaN, and so does +inf, because +inf − +inf is NaN.
template <typename T>
HWY_INLINE RowTotal<T> row_total(const T* x, int64_t count) {
  using A = Accumulator<T>;
  const Tag<T> d;
  RowTotal<T> total;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = std::min(kBlock, count - first);
    const T* block = x + first;
    const A top = largest(block, n);
    if (top > total.top) {
      total.sum *= std::exp(static_cast<double>(total.top) - top);
      total.top = top;
    }
    const bool none = total.top == -std::numeric_limits<A>::infinity();
    const auto shift = hn::Set(d, none ? A{0} : total.top);
    InterleavedSums<T> sums;
    each_vector_interleaved<T>(n, [&](auto lanes, int64_t i, auto turn) HWY_ATTR {
      const auto e = exp_of(d, hn::Sub(lanes.load(block + i), shift));
      sums.part[turn()] = hn::Add(sums.part[turn()], lanes.keep(e));
    });
    total.sum += static_cast<double>(sums.total());
  }
  return total;
}

// y = exp(x − shift)·factor
template <typename T>
HWY_INLINE void scaled_exp(T* y, const T* x, int64_t count, double shift, double factor) {
  const Tag<T> d;
  using A = Accumulator<T>;
  const auto by = hn::Set(d, static_cast<A>(factor)), less = hn::Set(d, static_cast<A>(shift));
  each_vector<T>(count, [=](auto lanes, int64_t i)
                            HWY_ATTR { lanes.store(hn::Mul(exp_of(d, hn::Sub(lanes.load(x + i), less)), by), y + i); });
}

template <typename T>
HWY_INLINE void row_gradient(T* row, int64_t count, int32_t target, double shift, double factor, double scale) {
  using A = Accumulator<T>;
  if (target < 0) return std::memset(static_cast<void*>(row), 0, static_cast<size_t>(count) * sizeof(T)), void();
  // The element at the target index is computed separately in fp64, so that p − 1 is rounded to T only once.
  const double p = std::exp(static_cast<double>(static_cast<A>(row[target])) - shift) * factor;
  scaled_exp(row, row, count, shift, factor);
  row[target] = static_cast<T>(static_cast<A>(p - scale));
}

void cross_entropy_forward_range(void* losses, void* lse, const void* logits, const int32_t* targets, int64_t rows,
                                 int64_t num_classes, int64_t row_stride, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = static_cast<const T*>(logits) + r * row_stride;
      const double all = row_total(row, num_classes).log();
      if (lse) static_cast<A*>(lse)[r] = static_cast<A>(all);
      static_cast<A*>(losses)[r] =
          targets[r] < 0 ? A{0} : static_cast<A>(all - static_cast<double>(static_cast<A>(row[targets[r]])));
    }
  });
}

void cross_entropy_backward_range(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                                  int64_t num_classes, int64_t row_stride, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t r = 0; r < rows; ++r) {
      const double all = static_cast<double>(static_cast<const Accumulator<T>*>(lse)[r]);
      row_gradient(static_cast<T*>(logits) + r * row_stride, num_classes, targets[r], all, scale, scale);
    }
  });
}

void cross_entropy_fused_range(void* losses, void* logits, const int32_t* targets, double scale, int64_t rows,
                               int64_t num_classes, int64_t row_stride, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      T* row = static_cast<T*>(logits) + r * row_stride;
      RowTotal<T> total;
      double loss = 0;
      if (targets[r] >= 0) {
        total = row_total(row, num_classes);
        loss = total.log() - static_cast<double>(static_cast<A>(row[targets[r]]));
      }
      static_cast<A*>(losses)[r] = static_cast<A>(loss);
      row_gradient(row, num_classes, targets[r], static_cast<double>(total.top), scale / total.sum, scale);
    }
  });
}

void part_forward_range(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets, int64_t rows,
                        const VocabShard& part, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = static_cast<const T*>(logits) + r * part.row_stride;
      const RowTotal<T> total = row_total(row, part.num_classes);
      const int64_t own = targets[r] - part.first_class;
      const bool here = targets[r] >= 0 && own >= 0 && own < part.num_classes;
      static_cast<A*>(tops)[r] = total.top;
      static_cast<A*>(sums)[r] = static_cast<A>(total.sum);
      static_cast<A*>(picked)[r] = here ? static_cast<A>(row[own]) : A{0};
    }
  });
}

void part_backward_range(void* logits, const void* tops, const void* sums, const int32_t* targets, double scale,
                         int64_t rows, const VocabShard& part, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      T* row = static_cast<T*>(logits) + r * part.row_stride;
      const auto shift = static_cast<double>(static_cast<const A*>(tops)[r]);
      const double factor = scale / static_cast<double>(static_cast<const A*>(sums)[r]);
      const int64_t own = targets[r] - part.first_class;
      if (targets[r] < 0 || (own >= 0 && own < part.num_classes)) {
        row_gradient(row, part.num_classes, static_cast<int32_t>(targets[r] < 0 ? -1 : own), shift, factor, scale);
      } else {
        scaled_exp(row, row, part.num_classes, shift, factor);
      }
    }
  });
}

void softmax_range(void* y, const void* x, int64_t rows, int64_t cols, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = static_cast<const T*>(x) + r * cols;
      const auto total = row_total(row, cols);
      scaled_exp(static_cast<T*>(y) + r * cols, row, cols, static_cast<double>(total.top), 1 / total.sum);
    }
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(cross_entropy_forward_range);
HWY_EXPORT(cross_entropy_backward_range);
HWY_EXPORT(cross_entropy_fused_range);
HWY_EXPORT(part_forward_range);
HWY_EXPORT(part_backward_range);
HWY_EXPORT(softmax_range);

namespace {

// Runs on the calling thread, because worker threads must not throw exceptions.
void check_targets(const int32_t* targets, int64_t rows, int64_t num_classes) {
  for (int64_t r = 0; r < rows; ++r)
    ESP_CHECK(targets[r] < num_classes, "cross entropy: got target {}; must be < {} (the number of classes)",
              targets[r], num_classes);
}

}  // namespace

void cross_entropy_forward(void* losses, void* lse, const void* logits, const int32_t* targets, int64_t rows,
                           int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::cross_entropy_forward(losses, lse, logits, targets, rows, num_classes, row_stride, dtype, stream);
  check_targets(targets, rows, num_classes);
  const DType stat = accumulator_of(dtype);
  const auto piece = HWY_DYNAMIC_DISPATCH(cross_entropy_forward_range);
  device::parallel_for(stream, rows, row_grain(num_classes), [&](int64_t begin, int64_t end) {
    piece(at(losses, begin, stat), at(lse, begin, stat), at(logits, begin * row_stride, dtype), targets + begin,
          end - begin, num_classes, row_stride, dtype);
  });
}

void cross_entropy_backward(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                            int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::cross_entropy_backward(logits, lse, targets, scale, rows, num_classes, row_stride, dtype, stream);
  check_targets(targets, rows, num_classes);
  const DType stat = accumulator_of(dtype);
  const auto piece = HWY_DYNAMIC_DISPATCH(cross_entropy_backward_range);
  device::parallel_for(stream, rows, row_grain(num_classes), [&](int64_t begin, int64_t end) {
    piece(at(logits, begin * row_stride, dtype), at(lse, begin, stat), targets + begin, scale, end - begin, num_classes,
          row_stride, dtype);
  });
}

void cross_entropy_fused(void* losses, void* logits, const int32_t* targets, double scale, int64_t rows,
                         int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::cross_entropy_fused(losses, logits, targets, scale, rows, num_classes, row_stride, dtype, stream);
  check_targets(targets, rows, num_classes);
  const DType stat = accumulator_of(dtype);
  const auto piece = HWY_DYNAMIC_DISPATCH(cross_entropy_fused_range);
  device::parallel_for(stream, rows, row_grain(num_classes), [&](int64_t begin, int64_t end) {
    piece(at(losses, begin, stat), at(logits, begin * row_stride, dtype), targets + begin, scale, end - begin,
          num_classes, row_stride, dtype);
  });
}

void vocab_cross_entropy_forward(void* tops, void* sums, void* picked, const void* logits, const int32_t* targets,
                                 int64_t rows, const VocabShard& part, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::vocab_cross_entropy_forward(tops, sums, picked, logits, targets, rows, part, dtype, stream);
  const DType stat = accumulator_of(dtype);
  const auto piece = HWY_DYNAMIC_DISPATCH(part_forward_range);
  device::parallel_for(stream, rows, row_grain(part.num_classes), [&](int64_t begin, int64_t end) {
    piece(at(tops, begin, stat), at(sums, begin, stat), at(picked, begin, stat),
          at(logits, begin * part.row_stride, dtype), targets + begin, end - begin, part, dtype);
  });
}

void vocab_cross_entropy_backward(void* logits, const void* tops, const void* sums, const int32_t* targets,
                                  double scale, int64_t rows, const VocabShard& part, DType dtype,
                                  const device::Stream& stream) {
  if (is_cuda(stream))
    return cuda::vocab_cross_entropy_backward(logits, tops, sums, targets, scale, rows, part, dtype, stream);
  const DType stat = accumulator_of(dtype);
  const auto piece = HWY_DYNAMIC_DISPATCH(part_backward_range);
  device::parallel_for(stream, rows, row_grain(part.num_classes), [&](int64_t begin, int64_t end) {
    piece(at(logits, begin * part.row_stride, dtype), at(tops, begin, stat), at(sums, begin, stat), targets + begin,
          scale, end - begin, part, dtype);
  });
}

void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::softmax_forward(y, x, rows, cols, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(softmax_range);
  device::parallel_for(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    piece(at(y, begin * cols, dtype), at(x, begin * cols, dtype), end - begin, cols, dtype);
  });
}

}  // namespace esp::kernel
#endif
