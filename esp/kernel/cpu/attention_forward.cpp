// Flash-style forward (Dao 2022): for a tile of queries, key tiles pass by; each leaves its scores for a moment, the
// row maximum and sum are brought up to date, and the output so far is rescaled as the tile's part is added.
//
// Scores are kept in units of log 2 (the factor is folded into the queries), so 2^x serves. Keys are packed transposed
// and values padded once per head and thread. A strip of queries stops at the last key its last query sees. How a row
// is computed depends on the shape alone.
//
// A block of keys goes on from an earlier finish: o there is a sum whose total is 1 at the height of its log-sum-exp.
#include "esp/kernel/attention.h"
#include "esp/kernel/on_cuda.h"

#include <cmath>
#include <limits>

#include "esp/kernel/cpu/attention_work.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include <hwy/highway.h>

#include "esp/kernel/cpu/attention_dropout-inl.h"
#include "esp/kernel/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace attend {

template <typename T>
class Forward {
  using A = Accumulator<T>;
  static constexpr int64_t kTile = kAttentionTile;

 public:
  // One of o and running is null: the output of a whole row, or what the blocks so far gave.
  Forward(T* o, A* running, A* lse, const T* q, const T* k, const T* v, const AttentionShape& shape)
      : o_(o), running_(running), lse_(lse), q_(q), k_(k), v_(v), s_(shape), dropout_(shape) {
    const int64_t width = padded<A>(s_.head_dim), tiles = num_tiles(s_.num_keys);
    const int64_t counts[] = {tiles * width * kTile, tiles * kTile * width, kTile * width,
                              kTile * width,         kTile * kTile,         kTile,
                              kTile + kLanes<A>,     kTile * kLanes<A>};
    int64_t total = 0;
    for (int64_t count : counts) total += Parts<A>::rounded(count);
    Parts<A> parts(static_cast<A*>(attention_scratch(static_cast<size_t>(total) * sizeof(A))));
    A** const to[] = {&keys_, &values_, &queries_, &sum_, &p_, &highest_, &factors_, &totals_};
    for (int i = 0; i < 8; ++i) *to[i] = parts.take(counts[i]);
  }

  // Block b·heads·tiles + h·tiles + tile: query tile `tile` of head h of sequence b.
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
    if (running_) go_on(b, h, first, rows);
    for (int64_t r = 0; r < kTile; ++r) visible_[r] = visible_keys(s_, b, std::min(first + r, s_.num_queries - 1));
    for (int64_t t = 0; t * kTile < visible_[rows - 1]; ++t) {
      if (t == num_packed_) pack(b, group, num_packed_++);
      const bool is_last = (t + 1) * kTile >= visible_[rows - 1];
      if (is_last) look_ahead(block);
      add_key_tile(b, h, first, rows, t, is_last);
    }
    store(b, h, first, rows);
  }

 private:
  // Below every score, yet finite: the difference of two is a number.
  static constexpr A kLowest = std::numeric_limits<A>::lowest() / 4;

  // The rows begin where the blocks before left them.
  void go_on(int64_t b, int64_t h, int64_t first, int64_t rows) {
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

  // What the next block reads that this one has not, and what this one writes.
  void look_ahead(int64_t block) {
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
    // All scores, then all outputs: one of the two key-side operands at a time lives in the first-level cache.
    for (int64_t r = 0; r < rows; r += kStripRows) {
      const int64_t seen = std::min(kTile, visible_[r + kStripRows - 1] - t * kTile);
      if (is_last) prefetch_[0].fetch(r, r + kStripRows), prefetch_[1].fetch(r, r + kStripRows);
      if (seen <= 0) continue;
      multiply_strip<Begin::zero, false>(p_ + r * kTile, kTile, queries_ + r * width, width, keys, kTile,
                                         covering<A>(seen), s_.head_dim);
      soften(r, t, covering<A>(seen));
      if (dropout_.active())
        for (int64_t i = r; i < std::min(rows, r + kStripRows); ++i)
          dropout_.apply(p_ + i * kTile, b, h, first + i, t * kTile, seen);
    }
    for (int64_t r = 0; r < rows; r += kStripRows) {
      const int64_t seen = std::min(kTile, visible_[r + kStripRows - 1] - t * kTile);
      if (is_last) prefetch_[2].fetch(r, r + kStripRows), prefetch_[3].fetch(r, r + kStripRows);
      if (seen > 0)
        multiply_strip<Begin::scaled, false>(sum_ + r * width, width, p_ + r * kTile, kTile, values, width, width, seen,
                                             factors_ + r);
    }
  }

  // Scores of a strip become 2^(score − highest so far); factors_ is what the earlier sum is to be multiplied by.
  HWY_INLINE void soften(int64_t strip, int64_t t, int64_t columns) {
    const Tag<A> d;
    HWY_ALIGN A before[kStripRows + kLanes<A>] = {}, now[kStripRows + kLanes<A>] = {};
    for (int64_t r = 0; r < kStripRows; ++r) {
      A* row = p_ + (strip + r) * kTile;
      hide(row, visible_[strip + r] - t * kTile, columns);
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

  // Scores from the `seen`-th on are of keys this query may not see.
  static HWY_INLINE void hide(A* row, int64_t seen, int64_t columns) {
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

}  // namespace attend

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
      attend::Forward<T> forward(static_cast<T*>(o), static_cast<A*>(running), static_cast<A*>(lse),
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
  if (on_cuda(stream)) return cuda::attention_forward(o, lse, q, k, v, shape, dtype, stream);
  if (shape.num_queries <= kFewQueries) return attention_decode(o, lse, q, k, v, shape, dtype, stream);
  HWY_DYNAMIC_DISPATCH(attention_forward_tiles)(o, nullptr, lse, q, k, v, shape, dtype, stream);
}

void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype, const device::Stream& stream) {
  check_attention(shape);
  if (on_cuda(stream)) return cuda::attention_forward_block(o, lse, q, k, v, shape, dtype, stream);
  HWY_DYNAMIC_DISPATCH(attention_forward_tiles)(nullptr, o, lse, q, k, v, shape, dtype, stream);
}

}  // namespace esp::kernel
#endif
