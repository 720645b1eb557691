// The GEMM micro-kernel. multiply_panels computes a tile from packed panels, and finish_tile applies the epilogue and
// writes the tile to C. multiply_panels_into does both for complete tiles without an epilogue.
//
// A tile is kTileRows × kTileVectors vectors of sums that stay in registers over the whole depth. Every element is one
// chain of multiply-adds in the order of K. The tile is then copied to a small buffer, so that the edges of C, the
// scaling and the epilogue need no separate code per tile shape.
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
#define ESP_UNROLLED_BY_DEPTHS _Pragma("unroll(kDepthUnroll)")
#else
#define ESP_UNROLLED _Pragma("GCC unroll 16")
#define ESP_UNROLLED_BY_DEPTHS _Pragma("GCC unroll kDepthUnroll")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Tile size: as many sums as fit in registers together with one row of B and one element of A.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr int kTileRows = 6, kTileVectors = 2;  // for instruction sets with 16 vector registers
inline constexpr int64_t kDepthUnroll = 4;             // loop over K is unrolled: loop instructions cost time here
inline constexpr bool kStoresDirectly = true;          // complete tiles without an epilogue skip the buffer
#else
inline constexpr int kTileRows = 8, kTileVectors = 3;  // for instruction sets with 32 vector registers
inline constexpr int64_t kDepthUnroll = 1;
inline constexpr bool kStoresDirectly = false;
#endif
// A tile that is stored without the buffer prefetches its part of C when this number of K indices is left.
inline constexpr int64_t kPrefetchDepth = 160;
template <typename A>
inline constexpr int64_t kTileColumns = kTileVectors* static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));

template <typename A, int kRows, int kVectors>
struct TileSums {
  hn::Vec<hn::ScalableTag<A>> at[kRows][kVectors];
};
// Register tile: at[i][j] += Σ_p a[p·kTileRows + i] · (vector j of the row of b at depth p).
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

// Destination of a complete tile that is stored from registers: C = alpha·sums + factor·C + bias. The bias may be null.
// If factor is 0, C is not read.
template <typename A>
struct DirectStore {
  A alpha, factor;
  A* c;
  int64_t c_stride;
  const A* bias;
};
template <typename A>
HWY_NOINLINE void multiply_panels_into(const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, int64_t depth,
                                       const DirectStore<A>& to) {
  const hn::ScalableTag<A> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<A>()));
  TileSums<A, kTileRows, kTileVectors> sums;
  ESP_UNROLLED for (int i = 0; i < kTileRows; ++i) {
    ESP_UNROLLED for (int j = 0; j < kTileVectors; ++j) sums.at[i][j] = hn::Zero(d);
  }
  const int64_t ahead = std::min<int64_t>(depth, kPrefetchDepth);
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
HWY_INLINE void multiply_columns(const A* a, const A* b, int64_t depth, int64_t columns, A* tile) {
  constexpr int64_t kLanes = kTileColumns<A> / kTileVectors;
  if (kTileVectors > 2 && columns > 2 * kLanes) return multiply_panels<A, kRows, kTileVectors>(a, b, depth, tile);
  if (columns > kLanes) return multiply_panels<A, kRows, 2>(a, b, depth, tile);
  multiply_panels<A, kRows, 1>(a, b, depth, tile);
}

// At the edge of C the number of rows is rounded up; results of the additional rows are not used.
template <typename A>
HWY_INLINE void multiply_tile(const A* a, const A* b, int64_t depth, int64_t rows, int64_t columns, A* tile) {
  if (rows > 4) return multiply_columns<A, kTileRows>(a, b, depth, columns, tile);
  if (rows > 2) return multiply_columns<A, 4>(a, b, depth, columns, tile);
  if (rows > 1) return multiply_columns<A, 2>(a, b, depth, columns, tile);
  multiply_columns<A, 1>(a, b, depth, columns, tile);
}

// Scaling and epilogue of a tile. Between the first and the last block of K, `partial` holds the partial sums. It
// points to C, or to scratch memory in two cases: C is 16-bit, or the old C is needed in the last block (backward
// epilogue, where beta·C must not be multiplied by the derivative).
template <typename T>
struct TileEpilogue {
  using A = Accumulator<T>;
  A alpha, beta;
  bool first, last;         // true in the first block of K, in the last block of K
  bool beta_first;          // add beta·C in the first block of K; required if C holds the partial sums
  T* c;                     // this and the other matrix pointers point to element (0, 0) of the tile
  A* partial;               // null if there is only one block of K
  const T* bias = nullptr;  // first column of the tile
  T* pre_activation = nullptr;
  const T* pre_activation_in = nullptr;
  int64_t c_stride, partial_stride;
};

// Returns the epilogue for the tile that is `row` rows below and `column` columns to the right.
template <typename T>
HWY_INLINE TileEpilogue<T> shift_epilogue(TileEpilogue<T> epilogue, int64_t row, int64_t column) {
  const int64_t by = row * epilogue.c_stride + column;
  epilogue.c += by;
  if (epilogue.partial) epilogue.partial += row * epilogue.partial_stride + column;
  if (epilogue.bias) epilogue.bias += column;
  if (epilogue.pre_activation) epilogue.pre_activation += by;
  if (epilogue.pre_activation_in) epilogue.pre_activation_in += by;
  return epilogue;
}

// Returns true if a tile can be stored without the buffer. This requires that in this block of K the value stored in C
// is alpha·sums + factor·C + bias.
template <typename T>
bool stores_directly(const TileEpilogue<T>& f, Activation activation) {
  if constexpr (is_half<T>) return false;
  return f.beta_first && (!f.last || (activation == Activation::none && !f.pre_activation && !f.pre_activation_in));
}
template <typename T>
HWY_INLINE DirectStore<T> direct_store(const TileEpilogue<T>& f) {
  return {f.alpha, f.first ? f.beta : T{1}, f.c, f.c_stride, f.last ? f.bias : nullptr};
}

template <Activation activation, typename T, class L>
HWY_INLINE void finish_vector(const TileEpilogue<T>& f, L lanes, Vec<T> sum, int64_t at_c, int64_t at_partial,
                              int64_t j) {
  const Tag<T> d;
  auto value = hn::Mul(hn::Set(d, f.alpha), sum);
  auto with_c = [&](Vec<T> v)
                    HWY_ATTR { return f.beta == 0 ? v : hn::MulAdd(hn::Set(d, f.beta), lanes.load(f.c + at_c), v); };
  if (!f.first) value = hn::Add(lanes.load(f.partial + at_partial), value);
  if (!f.last) return lanes.store(f.first && f.beta_first ? with_c(value) : value, f.partial + at_partial);
  const bool adds_c = !f.beta_first || f.first;
  if (f.pre_activation_in) {
    value = hn::Mul(value, activation_derivative_lanes<activation>(d, lanes.load(f.pre_activation_in + at_c)));
    return lanes.store(adds_c ? with_c(value) : value, f.c + at_c);
  }
  if (adds_c) value = with_c(value);
  if (f.bias) value = hn::Add(value, lanes.load(f.bias + j));
  if (f.pre_activation) lanes.store(value, f.pre_activation + at_c);
  lanes.store(activation_lanes<activation>(d, value), f.c + at_c);
}

template <Activation activation, typename T>
HWY_NOINLINE void finish_tile(const TileEpilogue<T>& f, const Accumulator<T>* tile, int64_t tile_stride, int64_t rows,
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

#endif  // included once per instruction set
