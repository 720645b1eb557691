// Vectorised GEMM, compiled once per instruction set and dispatched at run time.
//
// The loops follow Goto and van de Geijn (2008), reordered. All threads pack a block of A together and synchronise.
// Then each packs strips of its own columns of B into its L2 cache, where they stay while the panels of A pass through
// L1, and tiles of C accumulate in registers. A is double-buffered, so one block is packed while another thread still
// reads the other: one barrier per block of K. Neither matrix is packed twice, unless A is too tall for a block. With
// few columns the threads split the rows instead, and no barrier is needed.
#include "esp/kernel/gemm.h"
#include "esp/kernel/on_cuda.h"

#include "esp/device/barrier.h"
#include "esp/kernel/cpu/gemm_blocks.h"
#include "esp/kernel/floating.h"
#include "esp/kernel/gemm_check.h"

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

// The threads that share packed blocks of A, and this one's place among them.
struct Team {
  int index, size;
  device::Barrier* barrier;
};

// A range of rows or columns.
struct Range {
  int64_t begin, end;
};
// The part of `all` that falls to the member `index` of `size`, cut at multiples of `grain`.
inline Range share_of(Range all, int64_t grain, int index, int size) {
  const int64_t grains = divided_up(all.end - all.begin, grain);
  return {std::min(all.end, all.begin + grains * index / size * grain),
          std::min(all.end, all.begin + grains * (index + 1) / size * grain)};
}

// Sizes of the blocks, in elements, and where they are packed.
template <typename A>
struct Blocks {
  int64_t depth, rows;    // of a piece of K, a block of A
  int64_t columns;        // of C worked on at a time, where partial sums are kept aside; otherwise all
  int64_t strip;          // columns of B packed at a time
  A* packed_a[2];         // the team's
  A *packed_b, *partial;  // the member's; partial may be null
};

template <typename T>
auto finisher(bool last, Activation activation) {
  auto chosen = &finish_tile<Activation::none, T>;
  if (last) with_activation(activation, [&](auto which) { chosen = &finish_tile<which(), T>; });
  return chosen;
}

// A block of A against a strip of B.
template <typename T>
void multiply_strip(const Accumulator<T>* packed_a, const Accumulator<T>* packed_b, int64_t depth, int64_t rows,
                    int64_t columns, const Finish<T>& finish, Activation activation) {
  using A = Accumulator<T>;
  constexpr int64_t kWidth = kTileColumns<A>, kLine = 64 / static_cast<int64_t>(sizeof(T));
  const auto finish_with = finisher<T>(finish.last, activation);
  const bool plain = kGoesStraight && is_plain(finish, activation);
  HWY_ALIGN A tile[kTileRows * kWidth];
  for (int64_t i = 0; i < rows; i += kTileRows)
    for (int64_t j = 0; j < columns; j += kWidth) {
      if constexpr (kGoesStraight && !is_half<T>) {
        if (plain && i + kTileRows <= rows && j + kWidth <= columns) {
          Straight<A> to = straight(finish);
          to.c += i * to.c_stride + j;
          if (to.bias) to.bias += j;
          multiply_panels_into(packed_a + i * depth, packed_b + j * depth, depth, to);
          continue;
        }
      }
      const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i), tile_columns = std::min(kWidth, columns - j);
      const Finish<T> at = moved(finish, i, j);
      for (int64_t row = 0; row < tile_rows; ++row)
        for (int64_t column = 0; column < tile_columns; column += kLine)
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
void pack_a(Accumulator<T>* to, const Product<T>& x, Range rows, int64_t p, int64_t depth) {
  const GemmStrides& s = x.stride;
  if (depth > 0 && rows.begin < rows.end)
    pack<kTileRows>(to, x.a + rows.begin * s.a_row + p * s.a_col, s.a_row, s.a_col, rows.end - rows.begin,
                    x.m - rows.begin, depth);
}

template <typename T>
void pack_b(Accumulator<T>* to, const Product<T>& x, Range columns, int64_t p, int64_t depth) {
  const GemmStrides& s = x.stride;
  if (depth > 0)
    pack<kTileColumns<Accumulator<T>>>(to, x.b + p * s.b_row + columns.begin * s.b_col, s.b_col, s.b_row,
                                       columns.end - columns.begin, x.n - columns.begin, depth);
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

// One member's columns of C, strip by strip, for one block of A at (row, p).
template <typename T>
void multiply_own_columns(const Product<T>& x, const Blocks<Accumulator<T>>& blocks, const Accumulator<T>* packed_a,
                          Range rows, Range columns, int64_t p, int64_t depth) {
  const int64_t width = columns.end - columns.begin;
  const Finish<T> finish = finish_of(x, p, depth, blocks.partial, width);
  for (int64_t column = columns.begin; column < columns.end; column += blocks.strip) {
    const Range strip{column, std::min(column + blocks.strip, columns.end)};
    pack_b(blocks.packed_b, x, strip, p, depth);
    Finish<T> at = moved(finish, rows.begin, column);
    if (blocks.partial) at.partial = blocks.partial + (column - columns.begin);
    multiply_strip(packed_a, blocks.packed_b, depth, rows.end - rows.begin, strip.end - strip.begin, at,
                   x.options->activation);
  }
}

// `rows` of C, the columns shared out among the team.
template <typename T>
void multiply_rows_together(const Product<T>& x, const Blocks<Accumulator<T>>& blocks, const Team& team, Range rows) {
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
  int turn = 0;
  for (int64_t column = 0; column < x.n; column += blocks.columns) {
    const Range mine = share_of({column, std::min(column + blocks.columns, x.n)}, kLanes, team.index, team.size);
    for (int64_t row = rows.begin; row < rows.end; row += blocks.rows) {
      const Range block{row, std::min(row + blocks.rows, rows.end)};
      const Range share = share_of(block, kTileRows, team.index, team.size);
      for (int64_t p = 0; p == 0 || p < x.k; p += blocks.depth, turn ^= 1) {
        const int64_t depth = std::min(blocks.depth, x.k - p);
        pack_a(blocks.packed_a[turn] + (share.begin - row) * depth, x, share, p, depth);
        team.barrier->wait();
        multiply_own_columns(x, blocks, blocks.packed_a[turn], block, mine, p, depth);
      }
    }
  }
}

// The same for a handful of rows, without packing: the pieces of K of a few columns stay in buffers of our own.
template <typename T>
void multiply_columns_of_few_rows(const Product<T>& x, Range all) {
  using A = Accumulator<T>;
  const int64_t piece = depth_of<A>(x.k);
  HWY_ALIGN A sums[kFewRows * kFewColumns], partial[kFewRows * kFewColumns];
  for (int64_t column = all.begin; column < all.end; column += kFewColumns) {
    const int64_t columns = std::min(kFewColumns, all.end - column);
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

// Blocks evened out over the rows: the last one is as tall as the others.
template <typename A>
Blocks<A> sizes_of(int64_t rows, int64_t n, int64_t k, bool keeps_partial) {
  constexpr int64_t kElement = sizeof(A), kWidth = kTileColumns<A>;
  Blocks<A> blocks{};
  blocks.depth = std::min(depth_of<A>(k), std::max<int64_t>(k, 1));
  const int64_t tallest = std::max<int64_t>(1, kBlockBytes / kElement / blocks.depth / kTileRows) * kTileRows;
  blocks.rows = divided_up(divided_up(rows, divided_up(rows, tallest)), kTileRows) * kTileRows;
  blocks.strip = std::max<int64_t>(1, kStripBytes / kElement / blocks.depth / kWidth) * kWidth;
  blocks.strip = std::min(blocks.strip, divided_up(n, kWidth) * kWidth);
  blocks.columns = keeps_partial ? std::max(kWidth, kPartialBytes / kElement / blocks.rows / kWidth * kWidth) : n;
  return blocks;
}

// One allocation: two blocks of A per team, a strip of B and partial sums per worker.
template <typename A>
class Workspace {
 public:
  Workspace(const Blocks<A>& blocks, bool keeps_partial, int num_teams, int num_workers)
      : num_teams_(num_teams),
        a_size_(rounded(blocks.rows * blocks.depth)),
        b_size_(rounded(blocks.strip * blocks.depth)),
        partial_size_(keeps_partial ? rounded(blocks.rows * blocks.columns) : 0) {
    const int64_t elements = 2 * a_size_ * num_teams + (b_size_ + partial_size_) * num_workers;
    memory_ = static_cast<A*>(GemmScratch::of_this_thread().reserve(sizeof(A) * static_cast<size_t>(elements)));
  }
  Blocks<A> part_of(Blocks<A> blocks, int team, int worker) const {
    blocks.packed_a[0] = memory_ + 2 * a_size_ * team;
    blocks.packed_a[1] = blocks.packed_a[0] + a_size_;
    blocks.packed_b = memory_ + 2 * a_size_ * num_teams_ + (b_size_ + partial_size_) * worker;
    blocks.partial = partial_size_ ? blocks.packed_b + b_size_ : nullptr;
    return blocks;
  }

 private:
  static int64_t rounded(int64_t elements) { return divided_up(elements, 64) * 64; }
  int64_t num_teams_, a_size_, b_size_, partial_size_;
  A* memory_;
};

template <typename T>
void multiply(const Product<T>& x, const device::Stream& stream) {
  using A = Accumulator<T>;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
  constexpr double kWorthAThread = 64.0 * 64 * 64;  // multiply-adds: a few µs
  const bool small = static_cast<double>(x.m) * static_cast<double>(x.n) * static_cast<double>(x.k) < kWorthAThread;
  const int num_workers = small ? 1 : stream.num_threads();
  auto on_all_workers = [&](auto&& work) {
    if (num_workers == 1)
      work(0);
    else
      stream.pool->run(work);
  };
  if (x.m <= kFewRows && x.stride.b_col == 1)
    return on_all_workers([&](int worker) {
      multiply_columns_of_few_rows(x, share_of({0, x.n}, kTileColumns<A>, worker, num_workers));
    });

  const bool together = x.n >= 4 * kLanes * num_workers || x.m < kTileRows * num_workers;
  const int team_size = together ? num_workers : 1, num_teams = num_workers / team_size;
  const bool keeps_partial = !keeps_partial_in_c(x) && x.k > depth_of<A>(x.k);
  const Blocks<A> blocks = sizes_of<A>(divided_up(x.m, num_teams), x.n, x.k, keeps_partial);
  const Workspace<A> workspace(blocks, keeps_partial, num_teams, num_workers);
  device::Barrier barrier(team_size);
  on_all_workers([&](int worker) {
    const Range rows = together ? Range{0, x.m} : share_of({0, x.m}, kTileRows, worker, num_workers);
    multiply_rows_together(x, workspace.part_of(blocks, together ? 0 : worker, worker),
                           Team{together ? worker : 0, team_size, &barrier}, rows);
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
  if (on_cuda(stream)) return cuda::gemm(c, a, b, m, n, k, options, dtype, stream);
  if (m > 0 && n > 0) HWY_DYNAMIC_DISPATCH(gemm_any)(c, a, b, m, n, k, options, dtype, stream);
  if (GemmCheck* check = GemmCheck::of_this_thread()) check->pass(c, a, b, m, n, k, options, dtype);
}

}  // namespace esp::kernel
#endif
