// Flash attention forward (Dao 2022). For each tile of queries the kernel loops over key tiles (online softmax): it
// computes a tile of scores, updates the maximum and sum of each row, rescales the output so far, and adds the
// contribution of the tile.
//
// Queries are multiplied by log₂e, so that scores need 2^x instead of e^x. Each thread packs the keys (transposed) and
// the values (padded) of a head once. A strip of queries stops at the last key that is visible to its last query. The
// arithmetic of a row depends only on the shape, not on the number of threads.
//
// attention_forward_block continues from the result of earlier blocks: it starts with o as the output, 1 as the sum and
// the log-sum-exp as the maximum.
#include "esp/kernel/attention.h"
#include "esp/kernel/cuda_dispatch.h"

#include <cmath>
#include <limits>

#include "esp/kernel/cpu/attention_work.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include <hwy/highway.h>

#include "esp/kernel/cpu/attention_dropout-inl.h"
#include "esp/kernel/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace flash {

template <typename T>
class Forward {
  using A = Accumulator<T>;
  static constexpr int64_t kTile = kAttentionTile;

 public:
  // Either `o` or `running` is null. attention_forward writes to `o`. For attention_forward_block, `running` holds the
  // combined result of the blocks processed so far.
  Forward(T* o, A* running, A* lse, const T* q, const T* k, const T* v, const AttentionShape& shape)
      : o_(o), running_(running), lse_(lse), q_(q), k_(k), v_(v), s_(shape), dropout_(shape) {
    const int64_t width = padded<A>(s_.head_dim), tiles = num_tiles(s_.num_keys);
    const int64_t counts[] = {tiles * width * kTile, tiles * kTile * width, kTile * width,
                              kTile * width,         kTile * kTile,         kTile,
                              kTile + kLanes<A>,     kTile * kLanes<A>};
    int64_t total = 0;
    for (int64_t count : counts) total += ScratchAllocator<A>::rounded(count);
    ScratchAllocator<A> parts(static_cast<A*>(attention_scratch(static_cast<size_t>(total) * sizeof(A))));
    A** const to[] = {&keys_, &values_, &queries_, &sum_, &p_, &highest_, &factors_, &totals_};
    for (int i = 0; i < 8; ++i) *to[i] = parts.allocate(counts[i]);
  }

  // Processes query tile `tile` of head h of sequence b. `block` = (b·heads + h)·tiles + tile.
  void run(int64_t block) {
    const int64_t tiles = num_tiles(s_.num_queries);
    const int64_t b = block / tiles / s_.heads, h = block / tiles % s_.heads, tile = block % tiles;
    const int64_t group = h / (s_.heads / s_.kv_heads), first = tile * kTile;
    const int64_t rows = std::min(kTile, s_.num_queries - first), width = padded<A>(s_.head_dim);
    if (b != packed_batch_ || group != packed_group_) packed_batch_ = b, packed_group_ = group, num_packed_ = 0;
    const T* q = q_ + b * s_.q.batch + first * s_.q.token + h * s_.head_dim;
    load_tile(queries_, q, s_.q.token, rows, s_.head_dim, static_cast<A>(s_.scale * kLog2E));
    std::fill(sum_, sum_ + kTile * width, A{0});
    std::fill(totals_, totals_ + kTile * kLanes<A>, A{0});
    std::fill(highest_, highest_ + kTile, kLowest);
    if (running_) resume_rows(b, h, first, rows);
    for (int64_t r = 0; r < kTile; ++r) visible_[r] = visible_keys(s_, b, std::min(first + r, s_.num_queries - 1));
    for (int64_t t = 0; t * kTile < visible_[rows - 1]; ++t) {
      if (t == num_packed_) pack(b, group, num_packed_++);
      const bool is_last = (t + 1) * kTile >= visible_[rows - 1];
      if (is_last) prefetch_next(block);
      add_key_tile(b, h, first, rows, t, is_last);
    }
    store(b, h, first, rows);
  }

 private:
  // Smaller than every score, but finite, so that the difference of two such values is not a NaN.
  static constexpr A kLowest = std::numeric_limits<A>::lowest() / 4;

  // Initialises the rows with the result of the previous blocks.
  void resume_rows(int64_t b, int64_t h, int64_t first, int64_t rows) {
    const int64_t width = padded<A>(s_.head_dim);
    const A* from = running_ + b * s_.o.batch + first * s_.o.token + h * s_.head_dim;
    const A* lse = lse_ + (b * s_.heads + h) * s_.lse_stride() + first;
    for (int64_t r = 0; r < rows; ++r) {
      if (lse[r] == -std::numeric_limits<A>::infinity()) continue;
      highest_[r] = lse[r] * static_cast<A>(kLog2E);
      totals_[r * kLanes<A>] = 1;
      load_row(sum_ + r * width, from + r * s_.o.token, s_.head_dim, static_cast<A>(1 - s_.dropout));
    }
  }

  void pack(int64_t b, int64_t group, int64_t t) {
    const int64_t width = padded<A>(s_.head_dim), rows = std::min(kTile, s_.num_keys - t * kTile);
    const int64_t column = group * s_.head_dim;
    A* values = values_ + t * kTile * width;
    load_tile(values, k_ + b * s_.k.batch + t * kTile * s_.k.token + column, s_.k.token, rows, s_.head_dim, A{1});
    transpose_tile(keys_ + t * kTile * width, values, s_.head_dim);
    load_tile(values, v_ + b * s_.v.batch + t * kTile * s_.v.token + column, s_.v.token, rows, s_.head_dim, A{1});
  }

  // Prefetches the inputs that only the next block reads, and the outputs that this block writes.
  void prefetch_next(int64_t block) {
    const int64_t tiles = num_tiles(s_.num_queries), D = s_.head_dim, next = block + 1;
    const int64_t b = next / tiles / s_.heads, h = next / tiles % s_.heads, group = h / (s_.heads / s_.kv_heads);
    const int64_t key_tile = b == packed_batch_ && group == packed_group_ ? num_packed_ : 0;
    for (TilePrefetch& prefetch : prefetch_) prefetch = {};
    if (b < s_.batch) {
      prefetch_[0] = TilePrefetch::tile(q_, s_.q, b, h, s_.num_queries, D, next % tiles);
      prefetch_[1] = TilePrefetch::tile(k_, s_.k, b, group, s_.num_keys, D, key_tile);
      prefetch_[2] = TilePrefetch::tile(v_, s_.v, b, group, s_.num_keys, D, key_tile);
    }
    const int64_t own_b = block / tiles / s_.heads, own_h = block / tiles % s_.heads;
    prefetch_[3] = running_
                       ? TilePrefetch::tile(running_, s_.o, b, h, b < s_.batch ? s_.num_queries : 0, D, next % tiles)
                       : TilePrefetch::tile(o_, s_.o, own_b, own_h, s_.num_queries, D, block % tiles);
  }

  void add_key_tile(int64_t b, int64_t h, int64_t first, int64_t rows, int64_t t, bool is_last) {
    const int64_t width = padded<A>(s_.head_dim);
    const A* keys = keys_ + t * kTile * width;
    const A* values = values_ + t * kTile * width;
    // Computes all scores of the tile before the outputs, so that either the keys or the values occupy the L1 cache.
    for (int64_t r = 0; r < rows; r += kStripRows) {
      const int64_t seen = std::min(kTile, visible_[r + kStripRows - 1] - t * kTile);
      if (is_last) prefetch_[0].fetch(r, r + kStripRows), prefetch_[1].fetch(r, r + kStripRows);
      if (seen <= 0) continue;
      multiply_strip<TileInit::zero, false>(p_ + r * kTile, kTile, queries_ + r * width, width, keys, kTile,
                                            padded_columns<A>(seen), s_.head_dim);
      online_softmax(r, t, padded_columns<A>(seen));
      if (dropout_.active())
        for (int64_t i = r; i < std::min(rows, r + kStripRows); ++i)
          dropout_.apply(p_ + i * kTile, b, h, first + i, t * kTile, seen);
    }
    for (int64_t r = 0; r < rows; r += kStripRows) {
      const int64_t seen = std::min(kTile, visible_[r + kStripRows - 1] - t * kTile);
      if (is_last) prefetch_[2].fetch(r, r + kStripRows), prefetch_[3].fetch(r, r + kStripRows);
      if (seen > 0)
        multiply_strip<TileInit::scale, false>(sum_ + r * width, width, p_ + r * kTile, kTile, values, width, width,
                                               seen, factors_ + r);
    }
  }

  // Replaces the scores of a strip by 2^(score − largest score so far). Writes to factors_ the factors by which the
  // sums of earlier tiles must be multiplied.
  HWY_INLINE void online_softmax(int64_t strip, int64_t t, int64_t columns) {
    const Tag<A> d;
    HWY_ALIGN A before[kStripRows + kLanes<A>] = {}, now[kStripRows + kLanes<A>] = {};
    for (int64_t r = 0; r < kStripRows; ++r) {
      A* row = p_ + (strip + r) * kTile;
      mask_row(row, visible_[strip + r] - t * kTile, columns);
      auto highest = hn::Set(d, highest_[strip + r]);
      for (int64_t j = 0; j < columns; j += kLanes<A>) highest = hn::Max(highest, hn::Load(d, row + j));
      before[r] = highest_[strip + r];
      highest_[strip + r] = now[r] = hn::GetLane(hn::MaxOfLanes(d, highest));
    }
    for (int64_t r = 0; r < kStripRows; r += kLanes<A>)
      hn::StoreU(exp2_lanes(d, hn::Sub(hn::Load(d, before + r), hn::Load(d, now + r))), d, factors_ + strip + r);
    for (int64_t r = 0; r < kStripRows; ++r) {
      A* row = p_ + (strip + r) * kTile;
      A* total = totals_ + (strip + r) * kLanes<A>;
      auto sum = hn::Mul(hn::Load(d, total), hn::Set(d, factors_[strip + r]));
      for (int64_t j = 0; j < columns; j += kLanes<A>) {
        const auto p = exp2_lanes(d, hn::Sub(hn::Load(d, row + j), hn::Set(d, now[r])));
        hn::Store(p, d, row + j);
        sum = hn::Add(sum, p);
      }
      hn::Store(sum, d, total);
    }
  }

  // Masks the scores from index `seen` on: their keys are not visible to the query.
  static HWY_INLINE void mask_row(A* row, int64_t seen, int64_t columns) {
    if (seen >= columns) return;
    const Tag<A> d;
    const auto never = hn::Set(d, -std::numeric_limits<A>::infinity());
    seen = std::max<int64_t>(seen, 0);
    int64_t j = seen / kLanes<A> * kLanes<A>;
    hn::Store(hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(seen - j)), hn::Load(d, row + j), never), d, row + j);
    for (j += kLanes<A>; j < columns; j += kLanes<A>) hn::Store(never, d, row + j);
  }

  void store(int64_t b, int64_t h, int64_t first, int64_t rows) {
    const Tag<A> d;
    const int64_t width = padded<A>(s_.head_dim);
    const int64_t start = b * s_.o.batch + first * s_.o.token + h * s_.head_dim;
    A* lse = lse_ + (b * s_.heads + h) * s_.lse_stride() + first;
    const A kept = static_cast<A>(1 / (1 - s_.dropout));
    for (int64_t r = 0; r < rows; ++r) {
      const A total = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, totals_ + r * kLanes<A>)));
      const bool any = visible_[r] > 0 || highest_[r] > kLowest;
      const A factor = any ? kept / total : A{0};
      if (running_)
        store_row(running_ + start + r * s_.o.token, sum_ + r * width, s_.head_dim, factor);
      else
        store_row(o_ + start + r * s_.o.token, sum_ + r * width, s_.head_dim, factor);
      lse[r] = any ? (highest_[r] + std::log2(total)) * static_cast<A>(kLn2) : -std::numeric_limits<A>::infinity();
    }
  }

  T* const o_;
  A *const running_, *const lse_;
  const T *const q_, *const k_, *const v_;
  const AttentionShape& s_;
  RowDropout dropout_;
  int64_t packed_batch_ = -1, packed_group_ = -1, num_packed_ = 0;
  int64_t visible_[kTile];
  TilePrefetch prefetch_[4];
  A *keys_, *values_, *queries_, *sum_, *p_, *highest_, *factors_, *totals_;
};

}  // namespace flash

void attention_forward_tiles(void* o, void* running, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& s, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    const int64_t tiles = num_tiles(s.num_queries);
    auto cost = [&](int64_t block) {
      const int64_t last = std::min(s.num_queries, (block % tiles + 1) * kAttentionTile) - 1;
      return 1 + num_tiles(visible_keys(s, block / tiles / s.heads, last));
    };
    split_by_cost(stream, s.batch * s.heads * tiles, cost, [&](int64_t, int64_t begin, int64_t end) {
      using A = Accumulator<T>;
      flash::Forward<T> forward(static_cast<T*>(o), static_cast<A*>(running), static_cast<A*>(lse),
                                static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v), s);
      for (int64_t block = begin; block < end; ++block) forward.run(block);
    });
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(attention_forward_tiles);

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype, const device::Stream& stream) {
  check_attention(shape);
  if (is_cuda(stream)) return cuda::attention_forward(o, lse, q, k, v, shape, dtype, stream);
  if (shape.num_queries <= kFewQueries) return attention_decode(o, lse, q, k, v, shape, dtype, stream);
  HWY_DYNAMIC_DISPATCH(attention_forward_tiles)(o, nullptr, lse, q, k, v, shape, dtype, stream);
}

void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype, const device::Stream& stream) {
  check_attention(shape);
  if (is_cuda(stream)) return cuda::attention_forward_block(o, lse, q, k, v, shape, dtype, stream);
  HWY_DYNAMIC_DISPATCH(attention_forward_tiles)(nullptr, o, lse, q, k, v, shape, dtype, stream);
}

}  // namespace esp::kernel
#endif
