// Flash-style backward (Dao 2023): with p = 2^(score − lse) recomputed tile by tile, dp = dO·Vᵀ and ds = p∘(dp − dO·o),
// dV += pᵀ·dO, dK += dsᵀ·Q, dQ += ds·K.
//
// One head at a time: key tiles outside, query tiles inside, so a tile's dK and dV stay in cache and dQ of the head
// gathers key tile by key tile. With too few heads for the threads, the same tiles are walked twice: by key tiles for
// dK and dV, by query tiles for dQ. Either way every gradient adds the same products in the same order, so the bits do
// not depend on the number of threads.
#include <cmath>
#include <limits>

#include "esp/kernel/attention.h"
#include "esp/kernel/cpu/attention_work.h"
#include "esp/kernel/on_cuda.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include <hwy/highway.h>

#include "esp/kernel/cpu/attention_dropout-inl.h"
#include "esp/kernel/cpu/attention_tile-inl.h"

// Bound for padded() of any instruction set: the workspace is sized before one is chosen.
#ifndef ESP_KERNEL_CPU_ATTENTION_BACKWARD_SIZES
#define ESP_KERNEL_CPU_ATTENTION_BACKWARD_SIZES
namespace esp::kernel {

struct BackwardSizes {
  int64_t rows_q, rows_k, width;
  explicit BackwardSizes(const AttentionShape& s)
      : rows_q(num_tiles(s.num_queries) * kAttentionTile),
        rows_k(num_tiles(s.num_keys) * kAttentionTile),
        width((s.head_dim + 15) / 16 * 16) {}
  // Elements of one thread: what either walk keeps of whole sequences, and the tiles of both.
  int64_t per_thread() const {
    constexpr int64_t tile = kAttentionTile;
    return std::max((3 * width + 2) * rows_q + 2 * width * rows_k, 3 * width * rows_k) + 6 * tile * width +
           2 * tile * tile + 4 * tile;
  }
};

}  // namespace esp::kernel
#endif

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace attend {

// Rows of a gradient: written over in storage type, or (a block's part) over or onto sums.
template <typename T>
struct Target {
  using A = Accumulator<T>;
  AttentionStride stride;
  T* storage = nullptr;
  A* sums = nullptr;
  bool add = false;

  Target(void* to, const AttentionStride& s) : stride(s), storage(static_cast<T*>(to)) {}
  Target(void* to, const AttentionStride& s, bool onto) : stride(s), sums(static_cast<A*>(to)), add(onto) {}

  // `rows` rows of token `first` on, from tile rows of `width`.
  void store(const A* from, int64_t width, int64_t b, int64_t first, int64_t head, int64_t rows, int64_t head_dim,
             A factor) const {
    const int64_t start = b * stride.batch + first * stride.token + head * head_dim;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t to = start + r * stride.token;
      if (storage)
        store_row(storage + to, from + r * width, head_dim, factor);
      else if (add)
        add_row(sums + to, from + r * width, head_dim, factor);
      else
        store_row(sums + to, from + r * width, head_dim, factor);
    }
  }
  TilePrefetch prefetch(int64_t b, int64_t head, int64_t tokens, int64_t head_dim, int64_t tile) const {
    return storage ? TilePrefetch::tile(storage, stride, b, head, tokens, head_dim, tile)
                   : TilePrefetch::tile(sums, stride, b, head, tokens, head_dim, tile);
  }

 private:
  static HWY_INLINE void add_row(A* to, const A* from, int64_t head_dim, A factor) {
    const Tag<A> d;
    int64_t i = 0;
    for (; i + kLanes<A> <= head_dim; i += kLanes<A>)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, from + i), hn::Set(d, factor), hn::LoadU(d, to + i)), d, to + i);
    for (; i < head_dim; ++i) to[i] += from[i] * factor;
  }
};

template <typename T>
struct Gradients {
  Target<T> dq, dk, dv;
  const T *d_o, *o, *q, *k, *v;
  const Accumulator<T>* lse;
};

// The operands of one pair of tiles, converted; keys_t and values_t are [head_dim][tile].
template <typename A>
struct QueryTile {
  A *q, *d_o, *lse, *mean, *dq;
};
template <typename A>
struct KeyTile {
  A *keys_t, *values_t, *keys, *dk, *dv;
};

template <typename T>
class Backward {
  using A = Accumulator<T>;
  static constexpr int64_t kTile = kAttentionTile;

 public:
  Backward(const Gradients<T>& g, const AttentionShape& shape, A* memory)
      : g_(g), s_(shape), dropout_(shape), width_(padded<A>(shape.head_dim)), memory_(memory) {}

  // Key tiles [begin, end) of key/value head `group` of sequence b: their dk and dv, and dq of the group's heads when
  // the range is all of them and with_dq says so.
  void by_keys(int64_t b, int64_t group, int64_t begin, int64_t end, bool with_dq) {
    const BackwardSizes sizes(s_);
    Parts<A> parts(memory_);
    const QueryTile<A> whole{parts.take(sizes.rows_q * width_), parts.take(sizes.rows_q * width_),
                             parts.take(sizes.rows_q), parts.take(sizes.rows_q), parts.take(sizes.rows_q * width_)};
    A* dk = parts.take((end - begin) * kTile * width_);
    A* dv = parts.take((end - begin) * kTile * width_);
    KeyTile<A> keys{parts.take(kTile * width_), parts.take(kTile * width_), parts.take(kTile * width_), dk, dv};
    take_tiles(parts);
    std::fill(dk, dk + (end - begin) * kTile * width_, A{0});
    std::fill(dv, dv + (end - begin) * kTile * width_, A{0});
    const int64_t tiles = num_tiles(s_.num_queries), last_head = (group + 1) * group_size() - 1;
    for (int64_t h = group * group_size(); h <= last_head; ++h) {
      if (with_dq) std::fill(whole.dq, whole.dq + sizes.rows_q * width_, A{0});
      for (int64_t j = begin; j < end; ++j) {
        keys.dk = dk + (j - begin) * kTile * width_;
        keys.dv = dv + (j - begin) * kTile * width_;
        const bool is_seen = j * kTile < visible_keys(s_, b, s_.num_queries - 1);
        if (is_seen) load_keys(keys, b, group, j);
        for (int64_t i = first_query(s_, j * kTile) / kTile; is_seen && i < tiles; ++i) {
          QueryTile<A> queries = at(whole, i);
          if (!with_dq) queries.dq = nullptr;
          if (j == begin) load_queries(queries, b, h, i);
          look_ahead(b, h, i, j, j == begin, i == tiles - 1 && j == end - 1);
          pair(queries, keys, b, h, i, j);
          if (with_dq && j + 1 == num_seen(b, i)) store_dq(queries.dq, b, h, i);
        }
        if (h == last_head) store_dk_dv(keys.dk, keys.dv, b, group, j);
      }
      for (int64_t i = 0; with_dq && i < tiles && num_seen(b, i) == 0; ++i) store_dq(at(whole, i).dq, b, h, i);
    }
  }

  // Query tiles [begin, end) of head h of sequence b: their dq.
  void by_queries(int64_t b, int64_t h, int64_t begin, int64_t end) {
    const BackwardSizes sizes(s_);
    Parts<A> parts(memory_);
    const KeyTile<A> whole{parts.take(sizes.rows_k * width_), parts.take(sizes.rows_k * width_),
                           parts.take(sizes.rows_k * width_), nullptr, nullptr};
    const QueryTile<A> queries{parts.take(kTile * width_), parts.take(kTile * width_), parts.take(kTile),
                               parts.take(kTile), parts.take(kTile * width_)};
    take_tiles(parts);
    int64_t num_loaded = 0;
    for (int64_t i = begin; i < end; ++i) {
      load_queries(queries, b, h, i);
      std::fill(queries.dq, queries.dq + kTile * width_, A{0});
      for (int64_t j = 0; j < num_seen(b, i); ++j) {
        const KeyTile<A> keys{whole.keys_t + j * kTile * width_, whole.values_t + j * kTile * width_,
                              whole.keys + j * kTile * width_, nullptr, nullptr};
        if (j == num_loaded) load_keys(keys, b, h / group_size(), num_loaded++);
        look_ahead(b, h, i, j, j == 0, false);
        pair(queries, keys, b, h, i, j);
      }
      store_dq(queries.dq, b, h, i);
    }
  }

 private:
  int64_t group_size() const { return s_.heads / s_.kv_heads; }

  // Key tiles that query tile i sees.
  int64_t num_seen(int64_t b, int64_t i) const {
    return num_tiles(visible_keys(s_, b, std::min(s_.num_queries, (i + 1) * kTile) - 1));
  }

  QueryTile<A> at(const QueryTile<A>& whole, int64_t i) const {
    const int64_t rows = i * kTile;
    return {whole.q + rows * width_, whole.d_o + rows * width_, whole.lse + rows, whole.mean + rows,
            whole.dq + rows * width_};
  }

  void take_tiles(Parts<A>& parts) {
    p_ = parts.take(kTile * kTile);
    ds_ = parts.take(kTile * kTile);
    keep_ = parts.take(kTile);
  }

  void load_queries(const QueryTile<A>& to, int64_t b, int64_t h, int64_t i) {
    const int64_t first = i * kTile, rows = std::min(kTile, s_.num_queries - first), column = h * s_.head_dim;
    load_tile(to.q, g_.q + b * s_.q.batch + first * s_.q.token + column, s_.q.token, rows, s_.head_dim,
              static_cast<A>(s_.scale * kLog2E));
    const int64_t start = b * s_.o.batch + first * s_.o.token + column;
    load_tile(to.d_o, g_.d_o + start, s_.o.token, rows, s_.head_dim, A{1});
    const A* lse = g_.lse + (b * s_.heads + h) * s_.lse_stride() + first;
    for (int64_t r = 0; r < kTile; ++r) {
      to.mean[r] = r < rows ? dot(to.d_o + r * width_, g_.o + start + r * s_.o.token) : A{0};
      to.lse[r] = r < rows && visible_keys(s_, b, first + r) > 0 ? lse[r] * static_cast<A>(kLog2E) : A{0};
    }
  }

  HWY_INLINE A dot(const A* x, const T* y) const {
    auto sums = hn::Zero(Tag<A>());
    int64_t c = 0;
    for (; c + kLanes<A> <= s_.head_dim; c += kLanes<A>)
      sums = hn::MulAdd(hn::Load(Tag<A>(), x + c), load_lanes(y + c), sums);
    A sum = hn::GetLane(hn::SumOfLanes(Tag<A>(), sums));
    for (; c < s_.head_dim; ++c) sum += x[c] * static_cast<A>(y[c]);
    return sum;
  }

  void load_keys(const KeyTile<A>& to, int64_t b, int64_t group, int64_t j) {
    const int64_t first = j * kTile, rows = std::min(kTile, s_.num_keys - first), column = group * s_.head_dim;
    load_tile(to.keys, g_.v + b * s_.v.batch + first * s_.v.token + column, s_.v.token, rows, s_.head_dim, A{1});
    transpose_tile(to.values_t, to.keys, s_.head_dim);
    load_tile(to.keys, g_.k + b * s_.k.batch + first * s_.k.token + column, s_.k.token, rows, s_.head_dim, A{1});
    transpose_tile(to.keys_t, to.keys, s_.head_dim);
  }

  // While tiles i and j meet: the next query tile (on the first pass over them), the next key tile and what is written
  // soon; at the end of a head, the first tiles of the next.
  void look_ahead(int64_t b, int64_t h, int64_t i, int64_t j, bool first_pass, bool last_pair) {
    const int64_t D = s_.head_dim, Tq = s_.num_queries, Tk = s_.num_keys, group = h / group_size();
    for (TilePrefetch& prefetch : prefetch_) prefetch = {};
    if (last_pair && b * s_.heads + h + 1 < s_.batch * s_.heads) {
      const int64_t next_b = b + (h + 1) / s_.heads, next_h = (h + 1) % s_.heads;
      read_ahead(next_b, next_h, 0);
      prefetch_[3] = TilePrefetch::tile(g_.k, s_.k, next_b, next_h / group_size(), Tk, D, 0);
      prefetch_[4] = TilePrefetch::tile(g_.v, s_.v, next_b, next_h / group_size(), Tk, D, 0);
    } else if (first_pass) {
      read_ahead(b, h, i + 1);
    }
    if (i == first_query(s_, j * kTile) / kTile && !last_pair) {
      prefetch_[3] = TilePrefetch::tile(g_.k, s_.k, b, group, Tk, D, j + 1);
      prefetch_[4] = TilePrefetch::tile(g_.v, s_.v, b, group, Tk, D, j + 1);
      prefetch_[5] = g_.dk.prefetch(b, group, Tk, D, j);
      prefetch_[6] = g_.dv.prefetch(b, group, Tk, D, j);
    }
    if (j + 1 == num_seen(b, i)) prefetch_[7] = g_.dq.prefetch(b, h, Tq, D, i);
  }

  void read_ahead(int64_t b, int64_t h, int64_t i) {
    prefetch_[0] = TilePrefetch::tile(g_.q, s_.q, b, h, s_.num_queries, s_.head_dim, i);
    prefetch_[1] = TilePrefetch::tile(g_.o, s_.o, b, h, s_.num_queries, s_.head_dim, i);
    prefetch_[2] = TilePrefetch::tile(g_.d_o, s_.o, b, h, s_.num_queries, s_.head_dim, i);
  }

  // A strip's share of two of them.
  HWY_INLINE void fetch(int which, int64_t r) const {
    prefetch_[which].fetch(r, r + kStripRows);
    prefetch_[which + 1].fetch(r, r + kStripRows);
  }

  // What query tile i and key tile j give each other.
  void pair(const QueryTile<A>& queries, const KeyTile<A>& keys, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t rows = std::min(kTile, s_.num_queries - i * kTile), first = i * kTile;
    for (int64_t r = 0; r < kTile; ++r)
      seen_[r] = visible_keys(s_, b, std::min(first + r, s_.num_queries - 1)) - j * kTile;
    // Product by product, so that one key-side operand at a time lives in the first-level cache.
    for (int64_t r = 0; r < rows; r += kStripRows) {
      fetch(0, r);
      if (columns(r) > 0)
        multiply_strip<Begin::zero, false>(p_ + r * kTile, kTile, queries.q + r * width_, width_, keys.keys_t, kTile,
                                           columns(r), s_.head_dim);
    }
    for (int64_t r = 0; r < rows; r += kStripRows) {
      fetch(2, r);
      if (columns(r) == 0) continue;
      multiply_strip<Begin::zero, false>(ds_ + r * kTile, kTile, queries.d_o + r * width_, width_, keys.values_t, kTile,
                                         columns(r), s_.head_dim);
      for (int64_t k = r; k < r + kStripRows; ++k) {
        if (dropout_.active() && k < rows) dropout_.factors(keep_, b, h, first + k, j * kTile, columns(r));
        slope(p_ + k * kTile, ds_ + k * kTile, columns(r), seen_[k], queries.lse[k], queries.mean[k]);
      }
    }
    for (int64_t r = 0; r < rows; r += kStripRows) {
      fetch(4, r);
      fetch(6, r);
      if (queries.dq && columns(r) > 0)
        multiply_strip<Begin::sum, false>(queries.dq + r * width_, width_, ds_ + r * kTile, kTile, keys.keys, width_,
                                          width_, std::min(kTile, seen_[r + kStripRows - 1]));
    }
    if (!keys.dk) return;
    const int64_t most = std::min(kTile, seen_[kTile - 1]);
    gather(keys.dv, p_, queries.d_o, first, rows, most, j);
    gather(keys.dk, ds_, queries.q, first, rows, most, j);
  }

  // Columns computed for the strip that begins with row r.
  HWY_INLINE int64_t columns(int64_t r) const {
    return covering<A>(std::max<int64_t>(0, std::min(kTile, seen_[r + kStripRows - 1])));
  }

  // Scores and dp of one row become p (as dropped) and ds.
  HWY_INLINE void slope(A* p, A* ds, int64_t columns, int64_t seen, A lse, A mean) const {
    const Tag<A> d;
    for (int64_t c = 0; c < columns; c += kLanes<A>) {
      auto prob = exp2_lanes(d, hn::Sub(hn::Load(d, p + c), hn::Set(d, lse)));
      auto dp = hn::Load(d, ds + c);
      if (c + kLanes < A >> seen) {
        const auto mask = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(0, seen - c)));
        prob = hn::IfThenElseZero(mask, prob);
        dp = hn::IfThenElseZero(mask, dp);
      }
      if (dropout_.active()) {
        const auto keep = hn::Load(d, keep_ + c);
        hn::Store(hn::Mul(prob, keep), d, p + c);
        dp = hn::Mul(dp, keep);
      } else {
        hn::Store(prob, d, p + c);
      }
      hn::Store(hn::Mul(prob, hn::Sub(dp, hn::Set(d, mean))), d, ds + c);
    }
  }

  // to[key] += Σ over the queries of weights[query][key]·from[query], for the tile's first `count` keys.
  void gather(A* to, const A* weights, const A* from, int64_t first, int64_t rows, int64_t count, int64_t j) const {
    for (int64_t c = 0; c < count; c += kStripRows) {
      // Down to a whole strip of queries: those below it were computed for these keys too.
      const int64_t begin = std::max<int64_t>(0, first_query(s_, j * kTile + c) - first) / kStripRows * kStripRows;
      if (begin < rows)
        multiply_strip<Begin::sum, true>(to + c * width_, width_, weights + begin * kTile + c, kTile,
                                         from + begin * width_, width_, width_, rows - begin);
    }
  }

  void store_dq(const A* dq, int64_t b, int64_t h, int64_t i) const {
    const int64_t first = i * kTile;
    g_.dq.store(dq, width_, b, first, h, std::min(kTile, s_.num_queries - first), s_.head_dim,
                static_cast<A>(s_.scale));
  }

  void store_dk_dv(const A* dk, const A* dv, int64_t b, int64_t group, int64_t j) const {
    const int64_t first = j * kTile, rows = std::min(kTile, s_.num_keys - first);
    // The queries carry scale·log₂e.
    g_.dk.store(dk, width_, b, first, group, rows, s_.head_dim, static_cast<A>(kLn2));
    g_.dv.store(dv, width_, b, first, group, rows, s_.head_dim, A{1});
  }

  const Gradients<T>& g_;
  const AttentionShape& s_;
  RowDropout dropout_;
  const int64_t width_;
  A* const memory_;
  A *p_ = nullptr, *ds_ = nullptr, *keep_ = nullptr;
  int64_t seen_[kTile];
  TilePrefetch prefetch_[8];
};

}  // namespace attend

void attention_backward_tiles(const AttentionSums& to, bool is_block, const void* d_o, const void* o, const void* q,
                              const void* k, const void* v, const void* lse, void* workspace, const AttentionShape& s,
                              DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    auto target = [&](void* gradient, const AttentionStride& stride, bool add) {
      return is_block ? attend::Target<T>(gradient, stride, add) : attend::Target<T>(gradient, stride);
    };
    const attend::Gradients<T> g{
        target(to.dq, to.q, to.add_q), target(to.dk, to.k, to.add_kv), target(to.dv, to.v, to.add_kv),
        static_cast<const T*>(d_o),    static_cast<const T*>(o),       static_cast<const T*>(q),
        static_cast<const T*>(k),      static_cast<const T*>(v),       static_cast<const A*>(lse)};
    const int64_t tiles_q = num_tiles(s.num_queries), tiles_k = num_tiles(s.num_keys);
    const int64_t units = s.batch * s.kv_heads, threads = stream.num_threads();
    auto memory = [&](int64_t worker) {
      const uintptr_t start = (reinterpret_cast<uintptr_t>(workspace) + 63) / 64 * 64;
      return reinterpret_cast<A*>(start) + worker * Parts<A>::rounded(BackwardSizes(s).per_thread());
    };
    auto seen = [&](int64_t b) { return 1 + num_tiles(visible_keys(s, b, s.num_queries - 1)); };
    // Walking twice costs seven products instead of five.
    if ((units + threads - 1) / threads * threads * 5 <= units * 7) {
      auto cost = [&](int64_t unit) { return seen(unit / s.kv_heads); };
      split_by_cost(stream, units, cost, [&](int64_t worker, int64_t begin, int64_t end) {
        attend::Backward<T> backward(g, s, memory(worker));
        for (int64_t unit = begin; unit < end; ++unit)
          backward.by_keys(unit / s.kv_heads, unit % s.kv_heads, 0, tiles_k, true);
      });
      return;
    }
    auto key_cost = [&](int64_t block) {
      return 1 + tiles_q - std::min(tiles_q, first_query(s, block % tiles_k * kAttentionTile) / kAttentionTile);
    };
    split_by_cost(stream, units * tiles_k, key_cost, [&](int64_t worker, int64_t begin, int64_t end) {
      attend::Backward<T> backward(g, s, memory(worker));
      for (int64_t block = begin; block < end;) {
        const int64_t unit = block / tiles_k, last = std::min(end, (unit + 1) * tiles_k);
        backward.by_keys(unit / s.kv_heads, unit % s.kv_heads, block % tiles_k, last - unit * tiles_k, false);
        block = last;
      }
    });
    auto query_cost = [&](int64_t block) {
      const int64_t last = std::min(s.num_queries, (block % tiles_q + 1) * kAttentionTile) - 1;
      return 1 + num_tiles(visible_keys(s, block / tiles_q / s.heads, last));
    };
    split_by_cost(stream, s.batch * s.heads * tiles_q, query_cost, [&](int64_t worker, int64_t begin, int64_t end) {
      attend::Backward<T> backward(g, s, memory(worker));
      for (int64_t block = begin; block < end;) {
        const int64_t head = block / tiles_q, last = std::min(end, (head + 1) * tiles_q);
        backward.by_queries(head / s.heads, head % s.heads, block % tiles_q, last - head * tiles_q);
        block = last;
      }
    });
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(attention_backward_tiles);

void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                        const device::Stream& stream) {
  check_attention(shape);
  if (on_cuda(stream))
    return cuda::attention_backward(dq, dk, dv, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
  const AttentionSums to{dq, dk, dv, shape.q, shape.k, shape.v};
  HWY_DYNAMIC_DISPATCH(attention_backward_tiles)(to, false, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
}

void attention_backward_block(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k,
                              const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                              const device::Stream& stream) {
  check_attention(shape);
  if (on_cuda(stream))
    return cuda::attention_backward_block(sums, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
  HWY_DYNAMIC_DISPATCH(attention_backward_tiles)(sums, true, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
}

int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const device::Stream& stream) {
  if (on_cuda(stream)) return cuda::attention_workspace_bytes(shape, dtype, stream);
  const int64_t element = dtype == DType::f64 ? 8 : 4;
  return 64 + stream.num_threads() * ((BackwardSizes(shape).per_thread() + 15) / 16 * 16) * element;  // 64 to align
}

}  // namespace esp::kernel
#endif
