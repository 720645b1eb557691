// The two ends of a gemm tile: multiply_panels fills it from packed panels, finish_tile brings it into C;
// multiply_panels_into does both for whole tiles of plain sums.
//
// A tile is kTileRows × kTileVectors vectors of sums that stay in registers over the whole depth: every element is
// one chain of multiply-adds in the order of p. Then it passes through a small buffer, so that C's edges, the scaling
// and the epilogue need no code of their own per tile shape.
#if defined(ESP_KERNEL_CPU_GEMM_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_GEMM_TILE_INL_H
#undef ESP_KERNEL_CPU_GEMM_TILE_INL_H
#else
#define ESP_KERNEL_CPU_GEMM_TILE_INL_H
#endif

#include <hwy/cache_control.h>

#include "esp/kernel/cpu/activation-inl.h"
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/gemm.h"

#ifndef ESP_UNROLLED
#ifdef __clang__
#define ESP_UNROLLED _Pragma("unroll")
#define ESP_UNROLLED_BY_DEPTHS _Pragma("unroll(kDepthsAtOnce)")
#else
#define ESP_UNROLLED _Pragma("GCC unroll 16")
#define ESP_UNROLLED_BY_DEPTHS _Pragma("GCC unroll kDepthsAtOnce")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// As many sums as the registers hold beside one row of B and one element of A.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr int kTileRows = 6, kTileVectors = 2;  // 16 registers
inline constexpr int64_t kDepthsAtOnce = 4;            // the loop's own instructions are not free
inline constexpr bool kGoesStraight = true;            // whole tiles pass the buffer by where C takes plain sums
#else
inline constexpr int kTileRows = 8, kTileVectors = 3;  // 32 registers
inline constexpr int64_t kDepthsAtOnce = 1;
inline constexpr bool kGoesStraight = false;
#endif
// A tile that goes straight asks for its part of C so many depths before it is due.
inline constexpr int64_t kDepthsAhead = 160;
template <typename A>
inline constexpr int64_t kTileColumns = kTileVectors* static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));

template <typename A, int kRows, int kVectors>
struct TileSums {
  hn::Vec<hn::ScalableTag<A>> at[kRows][kVectors];
};
// at[i][j] += Σp a[p·kTileRows + i] · b[p·kTileColumns + j·lanes…].
template <typename A, int kRows, int kVectors>
HWY_INLINE void add_products(TileSums<A, kRows, kVectors>& sums, const A* HWY_RESTRICT a, const A* HWY_RESTRICT b,
                             int64_t depth) {
  const hn::ScalableTag<A> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));
  ESP_UNROLLED_BY_DEPTHS for (int64_t p = 0; p < depth; ++p) {
    hn::Vec<decltype(d)> row[kVectors];
    ESP_UNROLLED for (int j = 0; j < kVectors; ++j) row[j] = hn::Load(d, b + j * kLanes);
    ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
      const auto element = hn::Set(d, a[i]);
      ESP_UNROLLED for (int j = 0; j < kVectors; ++j) sums.at[i][j] = hn::MulAdd(element, row[j], sums.at[i][j]);
    }
    a += kTileRows;
    b += kTileColumns<A>;
  }
}

// tile[i·kTileColumns + j] = Σp a[p·kTileRows + i] · b[p·kTileColumns + j] for the first kRows rows and kVectors
// vectors.
template <typename A, int kRows, int kVectors>
HWY_NOINLINE void multiply_panels(const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, int64_t depth,
                                  A* HWY_RESTRICT tile) {
  const hn::ScalableTag<A> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));
  TileSums<A, kRows, kVectors> sums;
  ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kVectors; ++j) sums.at[i][j] = hn::Zero(d);
  }
  add_products(sums, a, b, depth);
  ESP_UNROLLED for (int i = 0; i < kRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kVectors; ++j)
        hn::Store(sums.at[i][j], d, tile + i * kTileColumns<A> + j * kLanes);
  }
}

// A whole tile straight from the registers into C: alpha·sums + factor·C + bias, where the bias may be null and C is
// not read with a factor of 0.
template <typename A>
struct Straight {
  A alpha, factor;
  A* c;
  int64_t c_stride;
  const A* bias;
};
template <typename A>
HWY_NOINLINE void multiply_panels_into(const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, int64_t depth,
                                       const Straight<A>& to) {
  const hn::ScalableTag<A> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));
  TileSums<A, kTileRows, kTileVectors> sums;
  ESP_UNROLLED for (int i = 0; i < kTileRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kTileVectors; ++j) sums.at[i][j] = hn::Zero(d);
  }
  const int64_t ahead = std::min<int64_t>(depth, kDepthsAhead);
  add_products(sums, a, b, depth - ahead);
  for (int i = 0; i < kTileRows; ++i) {
    hwy::Prefetch(to.c + i * to.c_stride);
    hwy::Prefetch(to.c + i * to.c_stride + kTileColumns<A> - 1);
  }
  add_products(sums, a + (depth - ahead) * kTileRows, b + (depth - ahead) * kTileColumns<A>, ahead);
  const auto alpha = hn::Set(d, to.alpha), factor = hn::Set(d, to.factor);
  ESP_UNROLLED for (int i = 0; i < kTileRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kTileVectors; ++j) sums.at[i][j] = hn::Mul(alpha, sums.at[i][j]);
  }
  if (to.factor != 0) {
    ESP_UNROLLED for (int i = 0; i < kTileRows; ++i) {
      ESP_UNROLLED for (int j = 0; j < kTileVectors; ++j) sums.at[i][j] =
          hn::MulAdd(factor, hn::LoadU(d, to.c + i * to.c_stride + j * kLanes), sums.at[i][j]);
    }
  }
  if (to.bias) {
    ESP_UNROLLED for (int i = 0; i < kTileRows; ++i) {
      ESP_UNROLLED for (int j = 0; j < kTileVectors; ++j) sums.at[i][j] =
          hn::Add(sums.at[i][j], hn::LoadU(d, to.bias + j * kLanes));
    }
  }
  ESP_UNROLLED for (int i = 0; i < kTileRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kTileVectors; ++j)
        hn::StoreU(sums.at[i][j], d, to.c + i * to.c_stride + j * kLanes);
  }
}

template <typename A, int kRows>
HWY_INLINE void multiply_some_columns(const A* a, const A* b, int64_t depth, int64_t columns, A* tile) {
  constexpr int64_t kLanes = kTileColumns<A> / kTileVectors;
  if (kTileVectors > 2 && columns > 2 * kLanes) return multiply_panels<A, kRows, kTileVectors>(a, b, depth, tile);
  if (columns > kLanes) return multiply_panels<A, kRows, 2>(a, b, depth, tile);
  multiply_panels<A, kRows, 1>(a, b, depth, tile);
}

// A tile at the edge computes few more rows than it needs; those are never looked at.
template <typename A>
HWY_INLINE void multiply_tile(const A* a, const A* b, int64_t depth, int64_t rows, int64_t columns, A* tile) {
  if (rows > 4) return multiply_some_columns<A, kTileRows>(a, b, depth, columns, tile);
  if (rows > 2) return multiply_some_columns<A, 4>(a, b, depth, columns, tile);
  if (rows > 1) return multiply_some_columns<A, 2>(a, b, depth, columns, tile);
  multiply_some_columns<A, 1>(a, b, depth, columns, tile);
}

// What becomes of a tile. Sums of the depths so far are kept in `partial` between the first and the last piece of K: C
// itself, or scratch where C cannot hold them (16 bits) or is still needed (a slope that may not touch beta·C).
template <typename T>
struct Finish {
  using A = Accumulator<T>;
  A alpha, beta;
  bool first, last;         // of the pieces of K
  bool beta_first;          // beta·C joins with the first piece, as it must where C holds the partial sums
  T* c;                     // like the pointers below, at the tile's (0, 0)
  A* partial;               // null where there is one piece only
  const T* bias = nullptr;  // at the tile's column
  T* pre_activation = nullptr;
  const T* pre_activation_in = nullptr;
  int64_t c_stride, partial_stride;
};

// `finish` for the tile `row` rows and `column` columns away.
template <typename T>
HWY_INLINE Finish<T> moved(Finish<T> finish, int64_t row, int64_t column) {
  const int64_t by = row * finish.c_stride + column;
  finish.c += by;
  if (finish.partial) finish.partial += row * finish.partial_stride + column;
  if (finish.bias) finish.bias += column;
  if (finish.pre_activation) finish.pre_activation += by;
  if (finish.pre_activation_in) finish.pre_activation_in += by;
  return finish;
}

// Whether a tile becomes alpha·sums + factor·C + bias, kept in C whichever piece of K it is.
template <typename T>
bool is_plain(const Finish<T>& f, Activation activation) {
  if constexpr (is_half<T>) return false;
  return f.beta_first && (!f.last || (activation == Activation::none && !f.pre_activation && !f.pre_activation_in));
}
template <typename T>
HWY_INLINE Straight<T> straight(const Finish<T>& f) {
  return {f.alpha, f.first ? f.beta : T{1}, f.c, f.c_stride, f.last ? f.bias : nullptr};
}

template <Activation activation, typename T, class L>
HWY_INLINE void finish_vector(const Finish<T>& f, L lanes, Vec<T> sum, int64_t at_c, int64_t at_partial, int64_t j) {
  const Tag<T> d;
  auto value = hn::Mul(hn::Set(d, f.alpha), sum);
  auto with_c = [&](Vec<T> v)
                    HWY_ATTR { return f.beta == 0 ? v : hn::MulAdd(hn::Set(d, f.beta), lanes.load(f.c + at_c), v); };
  if (!f.first) value = hn::Add(lanes.load(f.partial + at_partial), value);
  if (!f.last) return lanes.store(f.first && f.beta_first ? with_c(value) : value, f.partial + at_partial);
  const bool c_is_due = !f.beta_first || f.first;
  if (f.pre_activation_in) {
    value = hn::Mul(value, activation_slope_lanes<activation>(d, lanes.load(f.pre_activation_in + at_c)));
    return lanes.store(c_is_due ? with_c(value) : value, f.c + at_c);
  }
  if (c_is_due) value = with_c(value);
  if (f.bias) value = hn::Add(value, lanes.load(f.bias + j));
  if (f.pre_activation) lanes.store(value, f.pre_activation + at_c);
  lanes.store(activated_lanes<activation>(d, value), f.c + at_c);
}

template <Activation activation, typename T>
HWY_NOINLINE void finish_tile(const Finish<T>& f, const Accumulator<T>* tile, int64_t tile_stride, int64_t rows,
                              int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    const auto* from = tile + i * tile_stride;
    each_vector<T>(columns, [&](auto lanes, int64_t j) HWY_ATTR {
      finish_vector<activation>(f, lanes, lanes.load(from + j), i * f.c_stride + j, i * f.partial_stride + j, j);
    });
  }
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
