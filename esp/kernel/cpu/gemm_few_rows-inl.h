// GEMM with at most kFewRows rows and B stored by rows, as in generation with a KV cache. Reading B takes nearly all of
// the time, so B is read once and in memory order. The sums are in a buffer, not in registers. Each sum performs the
// same multiply-adds, in the same order, as in a tile of the general GEMM.
#if defined(ESP_KERNEL_CPU_GEMM_FEW_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_GEMM_FEW_ROWS_INL_H
#undef ESP_KERNEL_CPU_GEMM_FEW_ROWS_INL_H
#else
#define ESP_KERNEL_CPU_GEMM_FEW_ROWS_INL_H
#endif

#include "esp/kernel/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kFewRows = 4, kFewColumns = 512;

// sums[i·kFewColumns + j] += Σ a(i, p) · b(p, j) over the next kDepths indices p along K.
template <int kRows, int kDepths, typename T>
HWY_INLINE void add_depths(Accumulator<T>* sums, const T* a, const T* b, const GemmStrides& stride, int64_t columns) {
  using A = Accumulator<T>;
  const Tag<T> d;
  Vec<T> elements[kRows][kDepths];
  ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
    ESP_UNROLLED for (int p = 0; p < kDepths; ++p) elements[i][p] =
        hn::Set(d, static_cast<A>(a[i * stride.a_row + p * stride.a_col]));
  }
  each_vector<T>(columns, [&](auto lanes, int64_t j) HWY_ATTR {
    Vec<T> rows[kDepths];
    ESP_UNROLLED for (int p = 0; p < kDepths; ++p) rows[p] = lanes.load(b + p * stride.b_row + j);
    ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
      auto sum = hn::LoadU(d, sums + i * kFewColumns + j);
      ESP_UNROLLED for (int p = 0; p < kDepths; ++p) sum = hn::MulAdd(elements[i][p], rows[p], sum);
      hn::StoreU(sum, d, sums + i * kFewColumns + j);
    }
  });
}

template <int kRows, typename T>
HWY_NOINLINE void multiply_rows(Accumulator<T>* sums, const T* a, const T* b, const GemmStrides& stride,
                                int64_t columns, int64_t depth) {
  constexpr int kDepths = 4;
  std::fill_n(sums, kRows * kFewColumns, Accumulator<T>{0});
  int64_t p = 0;
  for (; p + kDepths <= depth; p += kDepths)
    add_depths<kRows, kDepths>(sums, a + p * stride.a_col, b + p * stride.b_row, stride, columns);
  for (; p < depth; ++p) add_depths<kRows, 1>(sums, a + p * stride.a_col, b + p * stride.b_row, stride, columns);
}

template <typename T>
void multiply_few_rows(Accumulator<T>* sums, const T* a, const T* b, const GemmStrides& stride, int64_t rows,
                       int64_t columns, int64_t depth) {
  if (rows == 1) return multiply_rows<1>(sums, a, b, stride, columns, depth);
  if (rows == 2) return multiply_rows<2>(sums, a, b, stride, columns, depth);
  if (rows == 3) return multiply_rows<3>(sums, a, b, stride, columns, depth);
  multiply_rows<4>(sums, a, b, stride, columns, depth);
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // included once per instruction set
