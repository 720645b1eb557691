// Vectorised GEMM, compiled once per instruction set and dispatched at run time.
//
// The loops follow Goto and van de Geijn (2008), in a different order. All threads of a team pack a block of A together
// and wait at a barrier. Then each thread packs strips of its columns of B. A strip stays in the thread's L2 cache
// while the panels of A pass through L1 and tiles of C accumulate in registers. There are two buffers for blocks of A,
// so a thread can pack the next block while other threads read the current one; this needs one barrier per block of K.
// Neither matrix is packed twice, unless A is too tall for one block. If C has few columns, the threads split the rows
// instead and need no barrier.
#include "esp/kernel/gemm.h"
#include "esp/kernel/cuda_dispatch.h"

#include "esp/device/barrier.h"
#include "esp/kernel/cpu/gemm_blocks.h"
#include "esp/kernel/floating.h"
#include "esp/kernel/gemm_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/gemm.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "esp/kernel/cpu/gemm_few_rows-inl.h"
#include "esp/kernel/cpu/gemm_pack-inl.h"
#include "esp/kernel/cpu/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

template <typename T>
struct GemmArgs {
  T* c;
  const T *a, *b;
  int64_t m, n, k;
  GemmStrides stride;
  const GemmOptions* options;
};

// Returns true if C stores the partial sums over K. This is impossible if C is 16-bit, or if the old values of C are
// needed in the last block of K.
template <typename T>
bool keeps_partial_in_c(const GemmArgs<T>& x) {
  return !is_half<T> && !(x.options->pre_activation_in && x.options->beta != 0);
}

// A team of threads that share packed blocks of A. `index` is the calling thread's index in the team.
struct Team {
  int index, size;
  device::Barrier* barrier;
};

// A range of rows or columns.
struct Range {
  int64_t begin, end;
};
// The part of `all` that team member `index` of `size` computes. `all` is split at multiples of `grain`.
inline Range partition(Range all, int64_t grain, int index, int size) {
  const int64_t grains = div_up(all.end - all.begin, grain);
  return {std::min(all.end, all.begin + grains * index / size * grain),
          std::min(all.end, all.begin + grains * (index + 1) / size * grain)};
}

// Block sizes in elements, and the packing buffers.
template <typename A>
struct BlockSizes {
  int64_t depth, rows;    // depth of a block of K; rows of a block of A
  int64_t columns;        // columns of C per pass; all columns if there is no `partial`
  int64_t strip;          // columns of B packed at a time
  A* packed_a[2];         // shared by the team; used alternately
  A *packed_b, *partial;  // one buffer per thread; partial is null if not needed
};

template <typename T>
auto select_finish_tile(bool last, Activation activation) {
  auto chosen = &finish_tile<Activation::none, T>;
  if (last) with_activation(activation, [&](auto which) { chosen = &finish_tile<which(), T>; });
  return chosen;
}

// Multiplies a packed block of A and a packed strip of B.
template <typename T>
void multiply_strip(const Accumulator<T>* packed_a, const Accumulator<T>* packed_b, int64_t depth, int64_t rows,
                    int64_t columns, const TileEpilogue<T>& epilogue, Activation activation) {
  using A = Accumulator<T>;
  constexpr int64_t kWidth = kTileColumns<A>, kLine = 64 / static_cast<int64_t>(sizeof(T));
  const auto finish_fn = select_finish_tile<T>(epilogue.last, activation);
  const bool plain = kStoresDirectly && stores_directly(epilogue, activation);
  HWY_ALIGN A tile[kTileRows * kWidth];
  for (int64_t i = 0; i < rows; i += kTileRows)
    for (int64_t j = 0; j < columns; j += kWidth) {
      if constexpr (kStoresDirectly && !is_half<T>) {
        if (plain && i + kTileRows <= rows && j + kWidth <= columns) {
          DirectStore<A> to = direct_store(epilogue);
          to.c += i * to.c_stride + j;
          if (to.bias) to.bias += j;
          multiply_panels_into(packed_a + i * depth, packed_b + j * depth, depth, to);
          continue;
        }
      }
      const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i), tile_columns = std::min(kWidth, columns - j);
      const TileEpilogue<T> at = shift_epilogue(epilogue, i, j);
      for (int64_t row = 0; row < tile_rows; ++row)
        for (int64_t column = 0; column < tile_columns; column += kLine)
          hwy::Prefetch(at.c + row * at.c_stride + column);
      multiply_tile(packed_a + i * depth, packed_b + j * depth, depth, tile_rows, tile_columns, tile);
      finish_fn(at, tile, kWidth, tile_rows, tile_columns);
    }
}

// Packs lines: rows of op(A) or columns of op(B). Neighbouring lines are `line_stride` elements apart; neighbouring
// elements of a line are `depth_stride` apart.
template <int64_t kWidth, typename T>
void pack(Accumulator<T>* to, const T* from, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t extent,
          int64_t depth) {
  if (line_stride == 1)
    pack_along<kWidth>(to, from, depth_stride, lines, extent, depth);
  else
    pack_across<kWidth>(to, from, line_stride, lines, extent, depth);
}

template <typename T>
void pack_a(Accumulator<T>* to, const GemmArgs<T>& x, Range rows, int64_t p, int64_t depth) {
  const GemmStrides& s = x.stride;
  if (depth > 0 && rows.begin < rows.end)
    pack<kTileRows>(to, x.a + rows.begin * s.a_row + p * s.a_col, s.a_row, s.a_col, rows.end - rows.begin,
                    x.m - rows.begin, depth);
}

template <typename T>
void pack_b(Accumulator<T>* to, const GemmArgs<T>& x, Range columns, int64_t p, int64_t depth) {
  const GemmStrides& s = x.stride;
  if (depth > 0)
    pack<kTileColumns<Accumulator<T>>>(to, x.b + p * s.b_row + columns.begin * s.b_col, s.b_col, s.b_row,
                                       columns.end - columns.begin, x.n - columns.begin, depth);
}

// Returns the epilogue for the block of K that starts at p. It is valid for the tile at row 0 and column 0 of C
// (shift_epilogue moves it to other tiles). If `partial` is null, C stores the partial sums.
template <typename T>
TileEpilogue<T> make_epilogue(const GemmArgs<T>& x, int64_t p, int64_t depth, Accumulator<T>* partial,
                              int64_t partial_stride) {
  using A = Accumulator<T>;
  const GemmOptions& o = *x.options;
  TileEpilogue<T> epilogue{};
  epilogue.alpha = static_cast<A>(o.alpha);
  epilogue.beta = static_cast<A>(o.beta);
  epilogue.first = p == 0;
  epilogue.last = p + depth >= x.k;
  epilogue.beta_first = keeps_partial_in_c(x);
  epilogue.c = x.c;
  epilogue.c_stride = x.stride.c_row;
  epilogue.partial = partial;
  epilogue.partial_stride = partial_stride;
  if constexpr (!is_half<T>) {
    if (!partial) {
      epilogue.partial = x.c;
      epilogue.partial_stride = x.stride.c_row;
    }
  }
  epilogue.bias = static_cast<const T*>(o.bias);
  epilogue.pre_activation = static_cast<T*>(o.pre_activation);
  epilogue.pre_activation_in = static_cast<const T*>(o.pre_activation_in);
  return epilogue;
}

// Multiplies one block of A, at (rows.begin, p), by the columns of B that belong to one thread of the team, strip by
// strip.
template <typename T>
void multiply_member_columns(const GemmArgs<T>& x, const BlockSizes<Accumulator<T>>& blocks,
                             const Accumulator<T>* packed_a, Range rows, Range columns, int64_t p, int64_t depth) {
  const int64_t width = columns.end - columns.begin;
  const TileEpilogue<T> epilogue = make_epilogue(x, p, depth, blocks.partial, width);
  for (int64_t column = columns.begin; column < columns.end; column += blocks.strip) {
    const Range strip{column, std::min(column + blocks.strip, columns.end)};
    pack_b(blocks.packed_b, x, strip, p, depth);
    TileEpilogue<T> at = shift_epilogue(epilogue, rows.begin, column);
    if (blocks.partial) at.partial = blocks.partial + (column - columns.begin);
    multiply_strip(packed_a, blocks.packed_b, depth, rows.end - rows.begin, strip.end - strip.begin, at,
                   x.options->activation);
  }
}

// Computes `rows` of C. The team's threads split the columns.
template <typename T>
void multiply_team_rows(const GemmArgs<T>& x, const BlockSizes<Accumulator<T>>& blocks, const Team& team, Range rows) {
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
  int turn = 0;
  for (int64_t column = 0; column < x.n; column += blocks.columns) {
    const Range mine = partition({column, std::min(column + blocks.columns, x.n)}, kLanes, team.index, team.size);
    for (int64_t row = rows.begin; row < rows.end; row += blocks.rows) {
      const Range block{row, std::min(row + blocks.rows, rows.end)};
      const Range share = partition(block, kTileRows, team.index, team.size);
      for (int64_t p = 0; p == 0 || p < x.k; p += blocks.depth, turn ^= 1) {
        const int64_t depth = std::min(blocks.depth, x.k - p);
        pack_a(blocks.packed_a[turn] + (share.begin - row) * depth, x, share, p, depth);
        team.barrier->wait();
        multiply_member_columns(x, blocks, blocks.packed_a[turn], block, mine, p, depth);
      }
    }
  }
}

// GEMM with at most kFewRows rows, without packing. The partial sums of kFewColumns columns are in buffers on the
// stack.
template <typename T>
void multiply_few_rows_range(const GemmArgs<T>& x, Range all) {
  using A = Accumulator<T>;
  const int64_t piece = k_block_depth<A>(x.k);
  HWY_ALIGN A sums[kFewRows * kFewColumns], partial[kFewRows * kFewColumns];
  for (int64_t column = all.begin; column < all.end; column += kFewColumns) {
    const int64_t columns = std::min(kFewColumns, all.end - column);
    for (int64_t p = 0; p == 0 || p < x.k; p += piece) {
      const int64_t depth = std::min(piece, x.k - p);
      const T* a = depth ? x.a + p * x.stride.a_col : x.a;
      const T* b = depth ? x.b + p * x.stride.b_row + column : x.b;
      multiply_few_rows(sums, a, b, x.stride, x.m, columns, depth);
      TileEpilogue<T> epilogue = shift_epilogue(make_epilogue(x, p, depth, partial, kFewColumns), 0, column);
      epilogue.partial = partial;
      select_finish_tile<T>(epilogue.last, x.options->activation)(epilogue, sums, kFewColumns, x.m, columns);
    }
  }
}

// Chooses the block sizes. Rows are split evenly, so that the last block is about as tall as the others.
template <typename A>
BlockSizes<A> block_sizes(int64_t rows, int64_t n, int64_t k, bool keeps_partial) {
  constexpr int64_t kElement = sizeof(A), kWidth = kTileColumns<A>;
  BlockSizes<A> blocks{};
  blocks.depth = std::min(k_block_depth<A>(k), std::max<int64_t>(k, 1));
  const int64_t tallest = std::max<int64_t>(1, kBlockBytes / kElement / blocks.depth / kTileRows) * kTileRows;
  blocks.rows = div_up(div_up(rows, div_up(rows, tallest)), kTileRows) * kTileRows;
  blocks.strip = std::max<int64_t>(1, kStripBytes / kElement / blocks.depth / kWidth) * kWidth;
  blocks.strip = std::min(blocks.strip, div_up(n, kWidth) * kWidth);
  blocks.columns = keeps_partial ? std::max(kWidth, kPartialBytes / kElement / blocks.rows / kWidth * kWidth) : n;
  return blocks;
}

// The packing buffers in one allocation: two blocks of A per team, and a strip of B and partial sums per thread.
template <typename A>
class Workspace {
 public:
  Workspace(const BlockSizes<A>& blocks, bool keeps_partial, int num_teams, int num_workers)
      : num_teams_(num_teams),
        a_size_(rounded(blocks.rows * blocks.depth)),
        b_size_(rounded(blocks.strip * blocks.depth)),
        partial_size_(keeps_partial ? rounded(blocks.rows * blocks.columns) : 0) {
    const int64_t elements = 2 * a_size_ * num_teams + (b_size_ + partial_size_) * num_workers;
    memory_ = static_cast<A*>(GemmScratch::of_this_thread().reserve(sizeof(A) * static_cast<size_t>(elements)));
  }
  BlockSizes<A> slice_for(BlockSizes<A> blocks, int team, int worker) const {
    blocks.packed_a[0] = memory_ + 2 * a_size_ * team;
    blocks.packed_a[1] = blocks.packed_a[0] + a_size_;
    blocks.packed_b = memory_ + 2 * a_size_ * num_teams_ + (b_size_ + partial_size_) * worker;
    blocks.partial = partial_size_ ? blocks.packed_b + b_size_ : nullptr;
    return blocks;
  }

 private:
  static int64_t rounded(int64_t elements) { return div_up(elements, 64) * 64; }
  int64_t num_teams_, a_size_, b_size_, partial_size_;
  A* memory_;
};

template <typename T>
void multiply(const GemmArgs<T>& x, const device::Stream& stream) {
  using A = Accumulator<T>;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
  // a thread needs at least this number of multiply-adds (a few µs); smaller GEMMs use one thread
  constexpr double kWorthAThread = 64.0 * 64 * 64;
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
      multiply_few_rows_range(x, partition({0, x.n}, kTileColumns<A>, worker, num_workers));
    });

  const bool one_team = x.n >= 4 * kLanes * num_workers || x.m < kTileRows * num_workers;
  const int team_size = one_team ? num_workers : 1, num_teams = num_workers / team_size;
  const bool keeps_partial = !keeps_partial_in_c(x) && x.k > k_block_depth<A>(x.k);
  const BlockSizes<A> blocks = block_sizes<A>(div_up(x.m, num_teams), x.n, x.k, keeps_partial);
  const Workspace<A> workspace(blocks, keeps_partial, num_teams, num_workers);
  device::Barrier barrier(team_size);
  on_all_workers([&](int worker) {
    const Range rows = one_team ? Range{0, x.m} : partition({0, x.m}, kTileRows, worker, num_workers);
    multiply_team_rows(x, workspace.slice_for(blocks, one_team ? 0 : worker, worker),
                       Team{one_team ? worker : 0, team_size, &barrier}, rows);
  });
}

void gemm_any(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
              DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    multiply(GemmArgs<T>{static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b), m, n, k,
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
  ESP_CHECK(m >= 0 && n >= 0 && k >= 0, "gemm: got M = {}, N = {}, K = {}; all must be >= 0", m, n, k);
  ESP_CHECK(is_floating(dtype), "gemm: got dtype {}; expected a floating-point type", name_of(dtype));
  const int64_t a_cols = o.transpose_a ? m : k, b_cols = o.transpose_b ? k : n;
  ESP_CHECK(o.lda == 0 || o.lda >= a_cols, "gemm: got row stride lda = {}; must be 0 or >= {} (columns of A)", o.lda,
            a_cols);
  ESP_CHECK(o.ldb == 0 || o.ldb >= b_cols, "gemm: got row stride ldb = {}; must be 0 or >= {} (columns of B)", o.ldb,
            b_cols);
  ESP_CHECK(o.ldc == 0 || o.ldc >= n, "gemm: got row stride ldc = {}; must be 0 or >= {} (columns of C)", o.ldc, n);
  ESP_CHECK(!(o.pre_activation_in && (o.bias || o.pre_activation)),
            "gemm: got pre_activation_in together with bias or pre_activation; expected one epilogue");
  ESP_CHECK(m * n == 0 || (c && (k == 0 || (a && b))),
            "gemm: got a null matrix for M = {}, N = {}, K = {}; expected A, B and C", m, n, k);
}

void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype, const device::Stream& stream) {
  check_gemm(c, a, b, m, n, k, options, dtype);
  if (is_cuda(stream)) return cuda::gemm(c, a, b, m, n, k, options, dtype, stream);
  if (m > 0 && n > 0) HWY_DYNAMIC_DISPATCH(gemm_any)(c, a, b, m, n, k, options, dtype, stream);
  if (GemmCheck* check = GemmCheck::of_this_thread()) check->pass(c, a, b, m, n, k, options, dtype);
}

}  // namespace esp::kernel
#endif
