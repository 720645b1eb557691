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

#include "esp/kernel/cpu/gemm_few_rows-inl.h"
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

// Sums of the pieces of K so far are kept in C, unless it has 16 bits or its old values are needed at the end.
template <typename T>
bool keeps_partial_in_c(const Product<T>& x) {
  return !is_half<T> && !(x.options->pre_activation_in && x.options->beta != 0);
}

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

template <typename T>
auto finisher(bool last, Activation activation) {
  auto chosen = &finish_tile<Activation::none, T>;
  if (last) with_activation(activation, [&](auto which) { chosen = &finish_tile<which(), T>; });
  return chosen;
}

// One block of A against one block of B, in strips of B that stay in the second-level cache while every panel of A,
// in turn, stays in the first.
template <typename T>
void multiply_block(const Accumulator<T>* packed_a, const Accumulator<T>* packed_b, int64_t depth, int64_t rows,
                    int64_t columns, const Finish<T>& finish, Activation activation) {
  using A = Accumulator<T>;
  constexpr int64_t kWidth = kTileColumns<A>;
  const auto finish_with = finisher<T>(finish.last, activation);
  const int64_t strip =
      std::max<int64_t>(1, kStripBytes / static_cast<int64_t>(sizeof(A)) / std::max<int64_t>(depth, 1) / kWidth) *
      kWidth;
  HWY_ALIGN A tile[kTileRows * kWidth];
  for (int64_t left = 0; left < columns; left += strip)
    for (int64_t i = 0; i < rows; i += kTileRows)
      for (int64_t j = left; j < std::min(left + strip, columns); j += kWidth) {
        const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i), tile_columns = std::min(kWidth, columns - j);
        const Finish<T> at = moved(finish, i, j);
        for (int64_t row = 0; row < tile_rows; ++row)
          for (int64_t column = 0; column < tile_columns; column += 64 / static_cast<int64_t>(sizeof(T)))
            hwy::Prefetch(at.c + row * at.c_stride + column);
        multiply_tile(packed_a + i * depth, packed_b + j * depth, depth, tile_rows, tile_columns, tile);
        finish_with(at, tile, kWidth, tile_rows, tile_columns);
      }
}

// Lines of op(A) or op(B): `line_stride` apart from each other, `depth_stride` from depth to depth.
template <int64_t kWidth, typename T>
void pack(Accumulator<T>* to, const T* from, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t extent,
          int64_t depth) {
  if (line_stride == 1)
    pack_along<kWidth>(to, from, depth_stride, lines, extent, depth);
  else
    pack_across<kWidth>(to, from, line_stride, lines, extent, depth);
}

template <typename T>
void pack_a(Accumulator<T>* to, const Product<T>& x, int64_t row, int64_t rows, int64_t p, int64_t depth) {
  const GemmStrides& s = x.stride;
  pack<kTileRows>(to, x.a + row * s.a_row + p * s.a_col, s.a_row, s.a_col, rows, x.m - row, depth);
}

// This member's share of the panels of B's columns [column, column + columns).
template <typename T>
void pack_b(Accumulator<T>* to, const Product<T>& x, int64_t column, int64_t columns, int64_t p, int64_t depth,
            const Team& team) {
  constexpr int64_t kWidth = kTileColumns<Accumulator<T>>;
  const GemmStrides& s = x.stride;
  const int64_t panels = divided_up(columns, kWidth);
  const int64_t begin = panels * team.index / team.size * kWidth;
  const int64_t end = std::min(columns, panels * (team.index + 1) / team.size * kWidth), at = column + begin;
  if (begin < end)
    pack<kWidth>(to + begin * depth, x.b + p * s.b_row + at * s.b_col, s.b_col, s.b_row, end - begin, x.n - at, depth);
}

// How tiles of the piece of K at p are finished, at C's (0, 0). Partial sums are kept in C where `partial` is null.
template <typename T>
Finish<T> finish_of(const Product<T>& x, int64_t p, int64_t depth, Accumulator<T>* partial, int64_t partial_stride) {
  using A = Accumulator<T>;
  const GemmOptions& o = *x.options;
  Finish<T> finish{};
  finish.alpha = static_cast<A>(o.alpha);
  finish.beta = static_cast<A>(o.beta);
  finish.first = p == 0;
  finish.last = p + depth >= x.k;
  finish.beta_first = keeps_partial_in_c(x);
  finish.c = x.c;
  finish.c_stride = x.stride.c_row;
  finish.partial = partial;
  finish.partial_stride = partial_stride;
  if constexpr (!is_half<T>) {
    if (!partial) {
      finish.partial = x.c;
      finish.partial_stride = x.stride.c_row;
    }
  }
  finish.bias = static_cast<const T*>(o.bias);
  finish.pre_activation = static_cast<T*>(o.pre_activation);
  finish.pre_activation_in = static_cast<const T*>(o.pre_activation_in);
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
        const Finish<T> finish = finish_of(x, p, depth, blocks.partial, blocks.columns);
        for (int64_t row = first_row; row < last_row; row += blocks.rows) {
          const int64_t rows = std::min(blocks.rows, last_row - row);
          if (depth > 0) pack_a(blocks.packed_a, x, row, rows, p, depth);
          Finish<T> at = moved(finish, row, column);
          if (blocks.partial) at.partial = blocks.partial + (row - top) * blocks.columns;
          multiply_block(blocks.packed_a, blocks.packed_b[turn], depth, rows, columns, at, x.options->activation);
        }
      }
    }
  }
}

// The same for a handful of rows, without packing: the pieces of K of a few columns stay in buffers of our own.
template <typename T>
void multiply_columns_of_few_rows(const Product<T>& x, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const int64_t piece = depth_of<A>(x.k);
  HWY_ALIGN A sums[kFewRows * kFewColumns], partial[kFewRows * kFewColumns];
  for (int64_t column = begin; column < end; column += kFewColumns) {
    const int64_t columns = std::min(kFewColumns, end - column);
    for (int64_t p = 0; p == 0 || p < x.k; p += piece) {
      const int64_t depth = std::min(piece, x.k - p);
      const T* a = depth ? x.a + p * x.stride.a_col : x.a;
      const T* b = depth ? x.b + p * x.stride.b_row + column : x.b;
      multiply_few_rows(sums, a, b, x.stride, x.m, columns, depth);
      Finish<T> finish = moved(finish_of(x, p, depth, partial, kFewColumns), 0, column);
      finish.partial = partial;
      finisher<T>(finish.last, x.options->activation)(finish, sums, kFewColumns, x.m, columns);
    }
  }
}

// Sizes of the blocks, those of B evened out over n.
template <typename A>
Blocks<A> sizes_of(int64_t m, int64_t n, int64_t k, bool keeps_partial) {
  Blocks<A> blocks{};
  blocks.depth = std::min(depth_of<A>(k), std::max<int64_t>(k, 1));
  const int64_t a_elements = kBlockABytes / sizeof(A), b_elements = kBlockBBytes / sizeof(A);
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

// Who works on what: all threads on the same columns, or each on columns of its own.
struct Split {
  int num_workers;
  bool by_rows;
  int64_t share;  // columns of one worker where they are shared out, all of them otherwise
};

template <typename T>
Split split_of(const Product<T>& x, const device::Stream& stream) {
  constexpr int64_t kWidth = kTileColumns<Accumulator<T>>;
  constexpr double kWorthAThread = 64.0 * 64 * 64;  // multiply-adds: a few µs
  const bool small = static_cast<double>(x.m) * static_cast<double>(x.n) * static_cast<double>(x.k) < kWorthAThread;
  Split split{small ? 1 : stream.num_threads(), true, x.n};
  const bool many_rows = x.m >= 4 * split.num_workers * kTileRows, few_columns = x.n < split.num_workers * kWidth;
  if (split.num_workers > 1 && !many_rows && !few_columns) {
    split.by_rows = false;
    split.share = divided_up(divided_up(x.n, split.num_workers), kWidth) * kWidth;
  }
  return split;
}

// One allocation for everybody: each worker's block of A, each team's two blocks of B and partial sums.
template <typename A>
struct Workspace {
  size_t a_size, b_size, partial_size;
  A* memory;

  Workspace(const Blocks<A>& blocks, bool keeps_partial, int num_workers, int num_teams)
      : a_size(rounded(blocks.rows * blocks.depth + kPanelSlack)),
        b_size(rounded(blocks.columns * blocks.depth)),
        partial_size(keeps_partial ? rounded(blocks.partial_rows * blocks.columns) : 0) {
    const size_t elements = a_size * static_cast<size_t>(num_workers) + team_size() * static_cast<size_t>(num_teams);
    memory = static_cast<A*>(GemmScratch::of_this_thread().reserve(sizeof(A) * elements));
  }
  Blocks<A> part_of(Blocks<A> blocks, int worker, int num_workers, int team) const {
    blocks.packed_a = memory + a_size * static_cast<size_t>(worker);
    blocks.packed_b[0] = memory + a_size * static_cast<size_t>(num_workers) + team_size() * static_cast<size_t>(team);
    blocks.packed_b[1] = blocks.packed_b[0] + b_size;
    blocks.partial = partial_size ? blocks.packed_b[1] + b_size : nullptr;
    return blocks;
  }

 private:
  size_t team_size() const { return 2 * b_size + partial_size; }
  static size_t rounded(int64_t elements) { return static_cast<size_t>(divided_up(elements, 64) * 64); }
};

template <typename T>
void multiply(const Product<T>& x, const device::Stream& stream) {
  using A = Accumulator<T>;
  const Split split = split_of(x, stream);
  auto on_all_workers = [&](auto&& work) {
    if (split.num_workers == 1)
      work(0);
    else
      stream.pool->run(work);
  };
  auto own_columns = [&](int worker, int64_t& begin, int64_t& end) {
    begin = std::min(x.n, split.by_rows ? 0 : split.share * worker);
    end = std::min(x.n, begin + split.share);
  };
  if (x.m <= kFewRows && x.stride.b_col == 1) {
    on_all_workers([&](int worker) {
      int64_t begin, end;
      own_columns(worker, begin, end);
      if (worker == 0 || !split.by_rows) multiply_columns_of_few_rows(x, begin, end);
    });
    return;
  }
  const bool keeps_partial = !keeps_partial_in_c(x) && x.k > depth_of<A>(x.k);
  const Blocks<A> blocks = sizes_of<A>(x.m, split.share, x.k, keeps_partial);
  const Workspace<A> workspace(blocks, keeps_partial, split.num_workers, split.by_rows ? 1 : split.num_workers);
  device::Barrier together(split.num_workers), nobody(1);
  on_all_workers([&](int worker) {
    int64_t begin, end;
    own_columns(worker, begin, end);
    const Team team = split.by_rows ? Team{worker, split.num_workers, &together} : Team{0, 1, &nobody};
    multiply_columns(x, workspace.part_of(blocks, worker, split.num_workers, split.by_rows ? 0 : worker), team, begin,
                     end);
  });
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
