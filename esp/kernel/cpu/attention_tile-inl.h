// Vector code of attention: conversion of tiles between storage type and fp32 (fp64 for f64), 2^x, and GEMMs of small
// tiles.
//
// A tile GEMM computes C strip by strip. The kStripRows rows of a strip stay in registers for the whole depth; at each
// depth, elements of A are broadcast and a row of B is loaded. On AVX-512 a strip is 8 rows × 2 vectors, which keeps
// the FMA units busy with operands from L1. Every row has padded(head_dim) elements, so a GEMM has no remainder.
#if defined(ESP_KERNEL_CPU_ATTENTION_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_ATTENTION_TILE_INL_H
#undef ESP_KERNEL_CPU_ATTENTION_TILE_INL_H
#else
#define ESP_KERNEL_CPU_ATTENTION_TILE_INL_H
#endif

#include <hwy/highway.h>

#include "esp/kernel/cpu/attention_work.h"
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace flash {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3
constexpr int kStripRows = 8;
#else
constexpr int kStripRows = 4;  // for instruction sets with 16 vector registers
#endif
constexpr int kStripVectors = 2;

template <typename A>
inline constexpr int64_t kLanes = hn::MaxLanes(Tag<A>());

template <typename A>
HWY_INLINE int64_t padded(int64_t head_dim) {
  return (head_dim + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
}

// --- storage ---

// to[0, padded) = factor·from[0, head_dim), then zeros.
template <typename T>
HWY_INLINE void load_row(Accumulator<T>* to, const T* from, int64_t head_dim, Accumulator<T> factor) {
  using A = Accumulator<T>;
  const auto by = hn::Set(Tag<A>(), factor);
  int64_t i = 0;
  for (; i + kLanes<A> <= head_dim; i += kLanes<A>) hn::StoreU(hn::Mul(load_lanes(from + i), by), Tag<A>(), to + i);
  for (; i < head_dim; ++i) to[i] = static_cast<A>(from[i]) * factor;
  for (; i < padded<A>(head_dim); ++i) to[i] = 0;
}

template <typename T>
HWY_INLINE void store_row(T* to, const Accumulator<T>* from, int64_t head_dim, Accumulator<T> factor) {
  using A = Accumulator<T>;
  const auto by = hn::Set(Tag<A>(), factor);
  int64_t i = 0;
  for (; i + kLanes<A> <= head_dim; i += kLanes<A>) store_lanes(hn::Mul(hn::LoadU(Tag<A>(), from + i), by), to + i);
  for (; i < head_dim; ++i) to[i] = static_cast<T>(from[i] * factor);
}

// Loads the first `rows` rows of a tile and sets the other rows to zero.
template <typename T>
void load_tile(Accumulator<T>* to, const T* from, int64_t stride, int64_t rows, int64_t head_dim,
               Accumulator<T> factor) {
  const int64_t width = padded<Accumulator<T>>(head_dim);
  for (int64_t r = 0; r < rows; ++r) load_row(to + r * width, from + r * stride, head_dim, factor);
  std::fill(to + rows * width, to + kAttentionTile * width, Accumulator<T>{0});
}

// Rows of a tile to prefetch into L2, one strip at a time, between GEMMs. Tokens are too far apart for the hardware
// prefetcher.
struct TilePrefetch {
  const void* data = nullptr;  // null: nothing to prefetch
  int64_t stride_bytes = 0, row_bytes = 0, rows = 0;

  template <typename T>
  static TilePrefetch tile(const T* tensor, const AttentionStride& stride, int64_t b, int64_t head, int64_t tokens,
                           int64_t head_dim, int64_t tile) {
    constexpr int64_t size = sizeof(T);
    const int64_t first = tile * kAttentionTile;
    if (first >= tokens) return {};
    return {tensor + b * stride.batch + first * stride.token + head * head_dim, stride.token * size, head_dim * size,
            std::min(kAttentionTile, tokens - first)};
  }
  HWY_INLINE void fetch(int64_t begin, int64_t end) const {
    if (!data) return;
    for (int64_t r = begin; r < std::min(end, rows); ++r)
      for (int64_t c = 0; c < row_bytes; c += 64)
        __builtin_prefetch(static_cast<const char*>(data) + r * stride_bytes + c, 0, 2);
  }
};

// Transposes four rows of four elements (two of two for f64).
#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void transpose_square(float* to, int64_t to_stride, const float* from, int64_t stride) {
  const hn::FixedTag<float, 4> d;
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + stride);
  const auto e = hn::LoadU(d, from + 2 * stride), f = hn::LoadU(d, from + 3 * stride);
  const auto low0 = hn::InterleaveLower(d, a, b), low1 = hn::InterleaveLower(d, e, f);
  const auto high0 = hn::InterleaveUpper(d, a, b), high1 = hn::InterleaveUpper(d, e, f);
  hn::StoreU(hn::ConcatLowerLower(d, low1, low0), d, to);
  hn::StoreU(hn::ConcatUpperUpper(d, low1, low0), d, to + to_stride);
  hn::StoreU(hn::ConcatLowerLower(d, high1, high0), d, to + 2 * to_stride);
  hn::StoreU(hn::ConcatUpperUpper(d, high1, high0), d, to + 3 * to_stride);
}
HWY_INLINE void transpose_square(double* to, int64_t to_stride, const double* from, int64_t stride) {
  const hn::FixedTag<double, 2> d;
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + stride);
  hn::StoreU(hn::InterleaveLower(d, a, b), d, to);
  hn::StoreU(hn::InterleaveUpper(d, a, b), d, to + to_stride);
}
#endif

// Transposes a tile to [padded][kAttentionTile].
template <typename A>
void transpose_tile(A* to, const A* tile, int64_t head_dim) {
  const int64_t width = padded<A>(head_dim);
#if HWY_TARGET == HWY_SCALAR
  for (int64_t c = 0; c < width; ++c)
    for (int64_t r = 0; r < kAttentionTile; ++r) to[c * kAttentionTile + r] = tile[r * width + c];
#else
  constexpr int64_t n = 16 / sizeof(A);
  for (int64_t c = 0; c < width; c += n)
    for (int64_t r = 0; r < kAttentionTile; r += n)
      transpose_square(to + c * kAttentionTile + r, kAttentionTile, tile + r * width + c, width);
#endif
}

// --- 2^x ---

constexpr double kInverseFactorials[] = {
    1.,        1.,         1. / 2,      1. / 6,       1. / 24,       1. / 120,       1. / 720,
    1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};

// 2^x with a relative error below 1e-7 (1e-15 for f64). x must be below 126 (1020 for f64). The result is 0 where it
// would be subnormal. A NaN stays a NaN.
template <class D, class V>
HWY_INLINE V exp2_lanes(D d, V x) {
  const hn::RebindToSigned<D> di;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const auto magic = hn::Set(d, 12582912.0f);  // 1.5·2^23: adding it leaves the nearest integer in the low bits
    const auto n = hn::Add(x, magic);
    const auto f = hn::Sub(x, hn::Sub(n, magic));
    auto p = hn::Set(d, 0.00015353361959569156f);
    p = hn::MulAdd(p, f, hn::Set(d, 0.0013398873852565885f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.00961843691766262f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.055503323674201965f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.24022647738456726f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.6931471824645996f));
    p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
    const auto y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, n))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -125.0f)), y);
  } else {
    const auto magic = hn::Set(d, 6755399441055744.0);  // 1.5·2^52, as above
    const auto n = hn::Add(x, magic);
    const auto r = hn::Mul(hn::Sub(x, hn::Sub(n, magic)), hn::Set(d, kLn2));
    auto p = hn::Set(d, kInverseFactorials[13]);  // Taylor series: the first omitted term is below 5e-18
    for (int k = 12; k >= 0; --k) p = hn::MulAdd(p, r, hn::Set(d, kInverseFactorials[k]));
    const auto y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<52>(hn::BitCast(di, n))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -1020.0)), y);
  }
}

// --- GEMM ---

enum class TileInit { zero, load, scale };  // initial accumulators: zero, C, or C times a factor per row

// C[kStripRows][kVectors vectors] += A·B over `depth`; A is [row][depth], or [depth][row] when kTransposed.
template <TileInit kInit, bool kTransposed, int kVectors, typename A>
HWY_INLINE void multiply(A* HWY_RESTRICT c, int64_t ldc, const A* HWY_RESTRICT a, int64_t lda, const A* HWY_RESTRICT b,
                         int64_t ldb, int64_t depth, const A* factors) {
  const Tag<A> d;
  constexpr int64_t n = kLanes<A>;
  hn::Vec<Tag<A>> sums[kStripRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kStripRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = kInit == TileInit::zero ? hn::Zero(d) : hn::LoadU(d, c + r * ldc + v * n);
      if constexpr (kInit == TileInit::scale) sums[r][v] = hn::Mul(sums[r][v], hn::Set(d, factors[r]));
    }
  }
#pragma GCC unroll 1
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<Tag<A>> row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b + k * ldb + v * n);
#pragma GCC unroll 8
    for (int r = 0; r < kStripRows; ++r) {
      const auto x = hn::Set(d, kTransposed ? a[k * lda + r] : a[r * lda + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(x, row[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kStripRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, c + r * ldc + v * n);
  }
}

// Computes one strip of C with `width` columns (a multiple of the number of lanes).
template <TileInit kInit, bool kTransposed, typename A>
void multiply_strip(A* c, int64_t ldc, const A* a, int64_t lda, const A* b, int64_t ldb, int64_t width, int64_t depth,
                    const A* factors = nullptr) {
  int64_t j = 0;
  for (; j + kStripVectors * kLanes<A> <= width; j += kStripVectors * kLanes<A>)
    multiply<kInit, kTransposed, kStripVectors>(c + j, ldc, a, lda, b + j, ldb, depth, factors);
  if (j < width) multiply<kInit, kTransposed, 1>(c + j, ldc, a, lda, b + j, ldb, depth, factors);
}

// Number of columns to compute: rounded up to whole vectors and to a multiple of kStripRows.
template <typename A>
HWY_INLINE int64_t padded_columns(int64_t count) {
  constexpr int64_t step = kLanes < A >> kStripRows ? kLanes<A> : kStripRows;
  return std::min(kAttentionTile, (count + step - 1) / step * step);
}

}  // namespace flash
}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // included once per instruction set
