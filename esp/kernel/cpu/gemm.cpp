// gemm with vectors, compiled once per instruction set and chosen at run time.
//
// The loops are those of Goto and van de Geijn (2008): a block of B is packed once for all threads, each thread packs
// blocks of its own rows of A, and tiles of C grow in registers from a panel of each. Threads meet once per block of B,
// which has two buffers: one is multiplied while the next is packed. With few rows the threads share out the columns
// instead, and nobody waits for anybody.
#include "esp/kernel/gemm.h"

#include "esp/device/barrier.h"
#include "esp/kernel/cpu/gemm_blocks.h"
#include "esp/kernel/floating.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/gemm.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "esp/kernel/cpu/gemm_pack-inl.h"
#include "esp/kernel/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

template <typename T>
struct Product {
  T* c;
  const T *a, *b;
  int64_t m, n, k;
  GemmStrides stride;
  const GemmOptions* options;
};

// The threads that share one packed block of B, and this one's place among them.
struct Team {
  int index, size;
  device::Barrier* barrier;
};

// Sizes of the blocks, in elements, and where they are packed.
template <typename A>
struct Blocks {
  int64_t depth, rows, columns;  // of a piece of K, a block of A, a block of B
  int64_t partial_rows;          // rows of C worked on at a time, where partial sums are kept aside; otherwise all
  A *packed_a, *packed_b[2], *partial;
};

// One block of A against one block of B: the panel of B stays near while the panels of A pass.
template <typename T>
void multiply_block(const Accumulator<T>* packed_a, const Accumulator<T>* packed_b, int64_t depth, int64_t rows,
                    int64_t columns, const Finish<T>& finish, Activation activation) {
  using A = Accumulator<T>;
  auto finish_with = &finish_tile<Activation::none, T>;
  if (finish.last) with_activation(activation, [&](auto which) { finish_with = &finish_tile<which(), T>; });
  HWY_ALIGN A tile[kTileRows * kTileColumns<A>];
  for (int64_t j = 0; j < columns; j += kTileColumns<A>)
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i);
      const int64_t tile_columns = std::min(kTileColumns<A>, columns - j);
      Finish<T> at = finish;
      at.c += i * at.c_stride + j;
      if (at.partial) at.partial += i * at.partial_stride + j;
      if (at.bias) at.bias += j;
      if (at.pre_activation) at.pre_activation += i * at.c_stride + j;
      if (at.pre_activation_in) at.pre_activation_in += i * at.c_stride + j;
      for (int64_t row = 0; row < tile_rows; ++row)
        for (int64_t column = 0; column < tile_columns; column += 64 / sizeof(T))
          __builtin_prefetch(at.c + row * at.c_stride + column, 1);
      multiply_tile(packed_a + i * depth, packed_b + j * depth, depth, tile_rows, tile_columns, tile);
      finish_with(at, tile, kTileColumns<A>, tile_rows, tile_columns);
    }
}

template <typename T>
void pack_a(Accumulator<T>* to, const Product<T>& x, int64_t row, int64_t rows, int64_t p, int64_t depth) {
  for (int64_t i = 0; i < rows; i += kTileRows, to += kTileRows * depth) {
    const T* from = x.a + (row + i) * x.stride.a_row + p * x.stride.a_col;
    if (x.stride.a_col == 1)
      pack_across(to, kTileRows, from, x.stride.a_row, x.m - row - i, depth);
    else
      pack_along(to, kTileRows, from, x.stride.a_col, x.m - row - i, depth);
  }
}

// This member's share of the panels of B's columns [column, column + columns).
template <typename T>
void pack_b(Accumulator<T>* to, const Product<T>& x, int64_t column, int64_t columns, int64_t p, int64_t depth,
            const Team& team) {
  constexpr int64_t kWidth = kTileColumns<Accumulator<T>>;
  const int64_t panels = divided_up(columns, kWidth);
  for (int64_t j = panels * team.index / team.size; j < panels * (team.index + 1) / team.size; ++j) {
    const int64_t at = column + j * kWidth;
    const T* from = x.b + p * x.stride.b_row + at * x.stride.b_col;
    if (x.stride.b_col == 1)
      pack_along(to + j * kWidth * depth, kWidth, from, x.stride.b_row, x.n - at, depth);
    else
      pack_across(to + j * kWidth * depth, kWidth, from, x.stride.b_col, x.n - at, depth);
  }
}

template <typename T>
Finish<T> finish_of(const Product<T>& x, int64_t p, int64_t depth) {
  using A = Accumulator<T>;
  const GemmOptions& o = *x.options;
  Finish<T> finish{};
  finish.alpha = static_cast<A>(o.alpha);
  finish.beta = static_cast<A>(o.beta);
  finish.first = p == 0;
  finish.last = p + depth >= x.k;
  finish.partial_in_c = !is_half<T> && !(o.pre_activation_in && o.beta != 0);
  finish.c_stride = x.stride.c_row;
  return finish;
}

// `finish` for the tile whose corner is (row, column) of C. Rows of scratch count from `scratch_row`.
template <typename T>
Finish<T> moved(Finish<T> finish, const Product<T>& x, const Blocks<Accumulator<T>>& blocks, int64_t scratch_row,
                int64_t row, int64_t column) {
  const GemmOptions& o = *x.options;
  const int64_t at = row * x.stride.c_row + column;
  finish.c = x.c + at;
  if (o.bias) finish.bias = static_cast<const T*>(o.bias) + column;
  if (o.pre_activation) finish.pre_activation = static_cast<T*>(o.pre_activation) + at;
  if (o.pre_activation_in) finish.pre_activation_in = static_cast<const T*>(o.pre_activation_in) + at;
  if constexpr (!is_half<T>) {
    if (finish.partial_in_c) {
      finish.partial = finish.c;
      finish.partial_stride = x.stride.c_row;
      return finish;
    }
  }
  finish.partial = blocks.partial + (row - scratch_row) * blocks.columns;
  finish.partial_stride = blocks.columns;
  return finish;
}

// Columns [begin, end) of C, the rows shared out among the team.
template <typename T>
void multiply_columns(const Product<T>& x, const Blocks<Accumulator<T>>& blocks, const Team& team, int64_t begin,
                      int64_t end) {
  int turn = 0;
  for (int64_t top = 0; top < x.m; top += blocks.partial_rows) {
    const int64_t height = std::min(blocks.partial_rows, x.m - top), panels = divided_up(height, kTileRows);
    const int64_t first_row = top + panels * team.index / team.size * kTileRows;
    const int64_t last_row = std::min(top + panels * (team.index + 1) / team.size * kTileRows, top + height);
    for (int64_t column = begin; column < end; column += blocks.columns) {
      const int64_t columns = std::min(blocks.columns, end - column);
      for (int64_t p = 0; p == 0 || p < x.k; p += blocks.depth, turn ^= 1) {
        const int64_t depth = std::min(blocks.depth, x.k - p);
        if (depth > 0) pack_b(blocks.packed_b[turn], x, column, columns, p, depth, team);
        team.barrier->wait();
        const Finish<T> finish = finish_of(x, p, depth);
        for (int64_t row = first_row; row < last_row; row += blocks.rows) {
          const int64_t rows = std::min(blocks.rows, last_row - row);
          if (depth > 0) pack_a(blocks.packed_a, x, row, rows, p, depth);
          multiply_block(blocks.packed_a, blocks.packed_b[turn], depth, rows, columns,
                         moved(finish, x, blocks, top, row, column), x.options->activation);
        }
      }
    }
  }
}

// Sizes that keep a block of A in the second-level cache and a block of B in the third, evened out over n.
template <typename A>
Blocks<A> sizes_of(int64_t m, int64_t n, int64_t k, bool keeps_partial) {
  Blocks<A> blocks{};
  blocks.depth = std::min(depth_of<A>(k), std::max<int64_t>(k, 1));
  const int64_t a_elements = (int64_t{384} << 10) / sizeof(A), b_elements = (int64_t{4} << 20) / sizeof(A);
  blocks.rows = std::max<int64_t>(1, a_elements / blocks.depth / kTileRows) * kTileRows;
  blocks.rows = std::min(blocks.rows, divided_up(m, kTileRows) * kTileRows);
  const int64_t widest = std::max<int64_t>(1, b_elements / blocks.depth / kTileColumns<A>) * kTileColumns<A>;
  const int64_t num_blocks = divided_up(n, widest);
  blocks.columns = divided_up(divided_up(n, num_blocks), kTileColumns<A>) * kTileColumns<A>;
  constexpr int64_t kPartialElements = int64_t{4} << 20;
  blocks.partial_rows =
      keeps_partial ? std::max<int64_t>(1, kPartialElements / blocks.columns / kTileRows) * kTileRows : m;
  blocks.partial_rows = std::min(blocks.partial_rows, m);
  return blocks;
}

template <typename T>
void multiply(const Product<T>& x, const device::Stream& stream) {
  using A = Accumulator<T>;
  constexpr double kWorthAThread = 64.0 * 64 * 64;  // multiply-adds: a few µs
  const bool alone = static_cast<double>(x.m) * static_cast<double>(x.n) * static_cast<double>(x.k) < kWorthAThread;
  const int num_workers = alone ? 1 : stream.num_threads();
  const bool by_rows = num_workers == 1 || x.m >= 4 * num_workers * kTileRows || x.n < num_workers * kTileColumns<A>;
  const int64_t num_teams = by_rows ? 1 : num_workers;
  const int64_t share = divided_up(divided_up(x.n, num_teams), kTileColumns<A>) * kTileColumns<A>;

  const Finish<T> kind = finish_of(x, 0, x.k);
  const bool keeps_partial = !kind.partial_in_c && x.k > depth_of<A>(x.k);
  Blocks<A> blocks = sizes_of<A>(x.m, share, x.k, keeps_partial);
  const size_t a_size = static_cast<size_t>(blocks.rows * blocks.depth + kPanelSlack) / 64 * 64 + 64;
  const size_t b_size = static_cast<size_t>(blocks.columns * blocks.depth) / 64 * 64 + 64;
  const size_t partial_size =
      keeps_partial ? static_cast<size_t>(blocks.partial_rows * blocks.columns) / 64 * 64 + 64 : 0;
  const size_t team_size = 2 * b_size + partial_size;
  auto* scratch = static_cast<A*>(GemmScratch::of_this_thread().reserve(
      sizeof(A) * (a_size * static_cast<size_t>(num_workers) + team_size * static_cast<size_t>(num_teams))));

  device::Barrier together(by_rows ? num_workers : 1);
  auto work = [&](int worker) {
    const auto team = static_cast<size_t>(by_rows ? 0 : worker);
    Blocks<A> mine = blocks;
    mine.packed_a = scratch + a_size * static_cast<size_t>(worker);
    mine.packed_b[0] = scratch + a_size * static_cast<size_t>(num_workers) + team_size * team;
    mine.packed_b[1] = mine.packed_b[0] + b_size;
    mine.partial = mine.packed_b[1] + b_size;
    device::Barrier nobody(1);
    if (by_rows) {
      multiply_columns(x, mine, Team{worker, num_workers, &together}, 0, x.n);
    } else {
      const int64_t begin = share * worker, end = std::min(x.n, share * (worker + 1));
      multiply_columns(x, mine, Team{0, 1, &nobody}, begin, end);
    }
  };
  if (num_workers == 1)
    work(0);
  else
    stream.pool->run(work);
}

void gemm_any(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
              DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    multiply(Product<T>{static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b), m, n, k,
                        strides_of(m, n, k, options), &options},
             stream);
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(gemm_any);

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
  if (m > 0 && n > 0) HWY_DYNAMIC_DISPATCH(gemm_any)(c, a, b, m, n, k, options, dtype, stream);
}

}  // namespace esp::kernel
#endif
