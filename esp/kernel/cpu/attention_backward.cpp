// Flash attention backward (Dao 2023). p = 2^(score − lse) is recomputed tile by tile; dp = dO·Vᵀ, ds = p∘(dp − dO·o),
// dV += pᵀ·dO, dK += dsᵀ·Q, dQ += ds·K.
//
// The kernel processes one head at a time. Key tiles are the outer loop and query tiles the inner loop: dK and dV of a
// tile stay in cache while dQ of the head accumulates. If there are too few heads to keep all threads busy, the tiles
// are traversed twice: by key tiles for dK and dV, and by query tiles for dQ. In both cases every gradient adds the
// same terms in the same order, so results do not depend on the number of threads.
#include <cmath>
#include <limits>

#include "esp/kernel/attention.h"
#include "esp/kernel/cpu/attention_work.h"
#include "esp/kernel/cuda_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include <hwy/highway.h>

#include "esp/kernel/cpu/attention_dropout-inl.h"
#include "esp/kernel/cpu/attention_tile-inl.h"

// Sizes of the workspace. They use the padding of the widest instruction set, because the workspace is allocated before
// an instruction set is chosen.
#ifndef ESP_KERNEL_CPU_ATTENTION_BACKWARD_SIZES
#define ESP_KERNEL_CPU_ATTENTION_BACKWARD_SIZES
namespace esp::kernel {

struct BackwardSizes {
  int64_t rows_q, rows_k, width;
  explicit BackwardSizes(const AttentionShape& s)
      : rows_q(num_tiles(s.num_queries) * kAttentionTile),
        rows_k(num_tiles(s.num_keys) * kAttentionTile),
        width((s.head_dim + 15) / 16 * 16) {}
  // Elements per thread: the tiles, plus full-sequence buffers for the traversal (by key tiles or by query tiles) that
  // needs more.
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
namespace flash {

// Destination of one gradient. attention_backward overwrites `storage`, in the storage type. attention_backward_block
// overwrites `sums` or, if `add` is set, adds to it.
template <typename T>
struct GradientOutput {
  using A = Accumulator<T>;
  AttentionStride stride;
  T* storage = nullptr;
  A* sums = nullptr;
  bool add = false;

  GradientOutput(void* to, const AttentionStride& s) : stride(s), storage(static_cast<T*>(to)) {}
  GradientOutput(void* to, const AttentionStride& s, bool accumulate)
      : stride(s), sums(static_cast<A*>(to)), add(accumulate) {}

  // Stores `rows` rows, starting at token `first`. The rows of `from` are `width` elements apart.
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
  GradientOutput<T> dq, dk, dv;
  const T *d_o, *o, *q, *k, *v;
  const Accumulator<T>* lse;
};

// QueryTile and KeyTile: the operands of one tile, in the accumulation type. keys_t and values_t are transposed:
// [head_dim][tile].
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

  // Computes dk and dv of key tiles [begin, end) for key/value head `group` of sequence b. With `with_dq` it also
  // computes dq of the group's heads; then [begin, end) must be all key tiles.
  void process_keys(int64_t b, int64_t group, int64_t begin, int64_t end, bool with_dq) {
    const BackwardSizes sizes(s_);
    ScratchAllocator<A> parts(memory_);
    const QueryTile<A> whole{parts.allocate(sizes.rows_q * width_), parts.allocate(sizes.rows_q * width_),
                             parts.allocate(sizes.rows_q), parts.allocate(sizes.rows_q),
                             parts.allocate(sizes.rows_q * width_)};
    A* dk = parts.allocate((end - begin) * kTile * width_);
    A* dv = parts.allocate((end - begin) * kTile * width_);
    KeyTile<A> keys{parts.allocate(kTile * width_), parts.allocate(kTile * width_), parts.allocate(kTile * width_), dk,
                    dv};
    allocate_tiles(parts);
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
          prefetch_next(b, h, i, j, j == begin, i == tiles - 1 && j == end - 1);
          process_tile_pair(queries, keys, b, h, i, j);
          if (with_dq && j + 1 == num_seen(b, i)) store_dq(queries.dq, b, h, i);
        }
        if (h == last_head) store_dk_dv(keys.dk, keys.dv, b, group, j);
      }
      for (int64_t i = 0; with_dq && i < tiles && num_seen(b, i) == 0; ++i) store_dq(at(whole, i).dq, b, h, i);
    }
  }

  // Computes dq of query tiles [begin, end) for head h of sequence b.
  void process_queries(int64_t b, int64_t h, int64_t begin, int64_t end) {
    const BackwardSizes sizes(s_);
    ScratchAllocator<A> parts(memory_);
    const KeyTile<A> whole{parts.allocate(sizes.rows_k * width_), parts.allocate(sizes.rows_k * width_),
                           parts.allocate(sizes.rows_k * width_), nullptr, nullptr};
    const QueryTile<A> queries{parts.allocate(kTile * width_), parts.allocate(kTile * width_), parts.allocate(kTile),
                               parts.allocate(kTile), parts.allocate(kTile * width_)};
    allocate_tiles(parts);
    int64_t num_loaded = 0;
    for (int64_t i = begin; i < end; ++i) {
      load_queries(queries, b, h, i);
      std::fill(queries.dq, queries.dq + kTile * width_, A{0});
      for (int64_t j = 0; j < num_seen(b, i); ++j) {
        const KeyTile<A> keys{whole.keys_t + j * kTile * width_, whole.values_t + j * kTile * width_,
                              whole.keys + j * kTile * width_, nullptr, nullptr};
        if (j == num_loaded) load_keys(keys, b, h / group_size(), num_loaded++);
        prefetch_next(b, h, i, j, j == 0, false);
        process_tile_pair(queries, keys, b, h, i, j);
      }
      store_dq(queries.dq, b, h, i);
    }
  }

 private:
  int64_t group_size() const { return s_.heads / s_.kv_heads; }

  // Number of key tiles that are visible to query tile i.
  int64_t num_seen(int64_t b, int64_t i) const {
    return num_tiles(visible_keys(s_, b, std::min(s_.num_queries, (i + 1) * kTile) - 1));
  }

  QueryTile<A> at(const QueryTile<A>& whole, int64_t i) const {
    const int64_t rows = i * kTile;
    return {whole.q + rows * width_, whole.d_o + rows * width_, whole.lse + rows, whole.mean + rows,
            whole.dq + rows * width_};
  }

  void allocate_tiles(ScratchAllocator<A>& parts) {
    p_ = parts.allocate(kTile * kTile);
    ds_ = parts.allocate(kTile * kTile);
    keep_ = parts.allocate(kTile);
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

  // Selects what to prefetch while query tile i and key tile j are processed: the next query tile (on the first pass),
  // the next key tile, and the gradients that are written soon. At the end of a head: the first tiles of the next head.
  void prefetch_next(int64_t b, int64_t h, int64_t i, int64_t j, bool first_pass, bool last_pair) {
    const int64_t D = s_.head_dim, Tq = s_.num_queries, Tk = s_.num_keys, group = h / group_size();
    for (TilePrefetch& prefetch : prefetch_) prefetch = {};
    if (last_pair && b * s_.heads + h + 1 < s_.batch * s_.heads) {
      const int64_t next_b = b + (h + 1) / s_.heads, next_h = (h + 1) % s_.heads;
      prefetch_queries(next_b, next_h, 0);
      prefetch_[3] = TilePrefetch::tile(g_.k, s_.k, next_b, next_h / group_size(), Tk, D, 0);
      prefetch_[4] = TilePrefetch::tile(g_.v, s_.v, next_b, next_h / group_size(), Tk, D, 0);
    } else if (first_pass) {
      prefetch_queries(b, h, i + 1);
    }
    if (i == first_query(s_, j * kTile) / kTile && !last_pair) {
      prefetch_[3] = TilePrefetch::tile(g_.k, s_.k, b, group, Tk, D, j + 1);
      prefetch_[4] = TilePrefetch::tile(g_.v, s_.v, b, group, Tk, D, j + 1);
      prefetch_[5] = g_.dk.prefetch(b, group, Tk, D, j);
      prefetch_[6] = g_.dv.prefetch(b, group, Tk, D, j);
    }
    if (j + 1 == num_seen(b, i)) prefetch_[7] = g_.dq.prefetch(b, h, Tq, D, i);
  }

  void prefetch_queries(int64_t b, int64_t h, int64_t i) {
    prefetch_[0] = TilePrefetch::tile(g_.q, s_.q, b, h, s_.num_queries, s_.head_dim, i);
    prefetch_[1] = TilePrefetch::tile(g_.o, s_.o, b, h, s_.num_queries, s_.head_dim, i);
    prefetch_[2] = TilePrefetch::tile(g_.d_o, s_.o, b, h, s_.num_queries, s_.head_dim, i);
  }

  // Prefetches one strip of rows, starting at row r, for the entries `which` and `which + 1` of prefetch_.
  HWY_INLINE void fetch(int which, int64_t r) const {
    prefetch_[which].fetch(r, r + kStripRows);
    prefetch_[which + 1].fetch(r, r + kStripRows);
  }

  // Adds the contributions of query tile i and key tile j to all gradients.
  void process_tile_pair(const QueryTile<A>& queries, const KeyTile<A>& keys, int64_t b, int64_t h, int64_t i,
                         int64_t j) {
    const int64_t rows = std::min(kTile, s_.num_queries - i * kTile), first = i * kTile;
    for (int64_t r = 0; r < kTile; ++r)
      seen_[r] = visible_keys(s_, b, std::min(first + r, s_.num_queries - 1)) - j * kTile;
    // Each of the three GEMMs runs over all strips before the next one starts, so that only one of keys_t, values_t and
    // keys occupies the L1 cache at a time.
    for (int64_t r = 0; r < rows; r += kStripRows) {
      fetch(0, r);
      if (columns(r) > 0)
        multiply_strip<TileInit::zero, false>(p_ + r * kTile, kTile, queries.q + r * width_, width_, keys.keys_t, kTile,
                                              columns(r), s_.head_dim);
    }
    for (int64_t r = 0; r < rows; r += kStripRows) {
      fetch(2, r);
      if (columns(r) == 0) continue;
      multiply_strip<TileInit::zero, false>(ds_ + r * kTile, kTile, queries.d_o + r * width_, width_, keys.values_t,
                                            kTile, columns(r), s_.head_dim);
      for (int64_t k = r; k < r + kStripRows; ++k) {
        if (dropout_.active() && k < rows) dropout_.factors(keep_, b, h, first + k, j * kTile, columns(r));
        softmax_backward_row(p_ + k * kTile, ds_ + k * kTile, columns(r), seen_[k], queries.lse[k], queries.mean[k]);
      }
    }
    for (int64_t r = 0; r < rows; r += kStripRows) {
      fetch(4, r);
      fetch(6, r);
      if (queries.dq && columns(r) > 0)
        multiply_strip<TileInit::load, false>(queries.dq + r * width_, width_, ds_ + r * kTile, kTile, keys.keys,
                                              width_, width_, std::min(kTile, seen_[r + kStripRows - 1]));
    }
    if (!keys.dk) return;
    const int64_t most = std::min(kTile, seen_[kTile - 1]);
    add_transposed_product(keys.dv, p_, queries.d_o, first, rows, most, j);
    add_transposed_product(keys.dk, ds_, queries.q, first, rows, most, j);
  }

  // Number of key columns to compute for the strip of queries that starts at row r.
  HWY_INLINE int64_t columns(int64_t r) const {
    return padded_columns<A>(std::max<int64_t>(0, std::min(kTile, seen_[r + kStripRows - 1])));
  }

  // Converts one row of scores to p (after dropout), and the same row of dp to ds.
  HWY_INLINE void softmax_backward_row(A* p, A* ds, int64_t columns, int64_t seen, A lse, A mean) const {
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

  // to[key] += Σ_query weights[query][key]·from[query], for the first `count` keys of tile j.
  void add_transposed_product(A* to, const A* weights, const A* from, int64_t first, int64_t rows, int64_t count,
                              int64_t j) const {
    for (int64_t c = 0; c < count; c += kStripRows) {
      // Scores are computed for whole strips, so the sum starts at the strip with the first query that sees key c.
      const int64_t begin = std::max<int64_t>(0, first_query(s_, j * kTile + c) - first) / kStripRows * kStripRows;
      if (begin < rows)
        multiply_strip<TileInit::load, true>(to + c * width_, width_, weights + begin * kTile + c, kTile,
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
    // The loaded queries are multiplied by scale·log₂e. ln 2 cancels the factor log₂e.
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

}  // namespace flash

void attention_backward_tiles(const AttentionSums& to, bool is_block, const void* d_o, const void* o, const void* q,
                              const void* k, const void* v, const void* lse, void* workspace, const AttentionShape& s,
                              DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    auto target = [&](void* gradient, const AttentionStride& stride, bool add) {
      return is_block ? flash::GradientOutput<T>(gradient, stride, add) : flash::GradientOutput<T>(gradient, stride);
    };
    const flash::Gradients<T> g{
        target(to.dq, to.q, to.add_q), target(to.dk, to.k, to.add_kv), target(to.dv, to.v, to.add_kv),
        static_cast<const T*>(d_o),    static_cast<const T*>(o),       static_cast<const T*>(q),
        static_cast<const T*>(k),      static_cast<const T*>(v),       static_cast<const A*>(lse)};
    const int64_t tiles_q = num_tiles(s.num_queries), tiles_k = num_tiles(s.num_keys);
    const int64_t units = s.batch * s.kv_heads, threads = stream.num_threads();
    auto memory = [&](int64_t worker) {
      const uintptr_t start = (reinterpret_cast<uintptr_t>(workspace) + 63) / 64 * 64;
      return reinterpret_cast<A*>(start) + worker * ScratchAllocator<A>::rounded(BackwardSizes(s).per_thread());
    };
    auto seen = [&](int64_t b) { return 1 + num_tiles(visible_keys(s, b, s.num_queries - 1)); };
    // Two traversals cost seven GEMMs per pair of tiles; one traversal costs five but cannot split a head among
    // threads.
    if ((units + threads - 1) / threads * threads * 5 <= units * 7) {
      auto cost = [&](int64_t unit) { return seen(unit / s.kv_heads); };
      split_by_cost(stream, units, cost, [&](int64_t worker, int64_t begin, int64_t end) {
        flash::Backward<T> backward(g, s, memory(worker));
        for (int64_t unit = begin; unit < end; ++unit)
          backward.process_keys(unit / s.kv_heads, unit % s.kv_heads, 0, tiles_k, true);
      });
      return;
    }
    auto key_cost = [&](int64_t block) {
      return 1 + tiles_q - std::min(tiles_q, first_query(s, block % tiles_k * kAttentionTile) / kAttentionTile);
    };
    split_by_cost(stream, units * tiles_k, key_cost, [&](int64_t worker, int64_t begin, int64_t end) {
      flash::Backward<T> backward(g, s, memory(worker));
      for (int64_t block = begin; block < end;) {
        const int64_t unit = block / tiles_k, last = std::min(end, (unit + 1) * tiles_k);
        backward.process_keys(unit / s.kv_heads, unit % s.kv_heads, block % tiles_k, last - unit * tiles_k, false);
        block = last;
      }
    });
    auto query_cost = [&](int64_t block) {
      const int64_t last = std::min(s.num_queries, (block % tiles_q + 1) * kAttentionTile) - 1;
      return 1 + num_tiles(visible_keys(s, block / tiles_q / s.heads, last));
    };
    split_by_cost(stream, s.batch * s.heads * tiles_q, query_cost, [&](int64_t worker, int64_t begin, int64_t end) {
      flash::Backward<T> backward(g, s, memory(worker));
      for (int64_t block = begin; block < end;) {
        const int64_t head = block / tiles_q, last = std::min(end, (head + 1) * tiles_q);
        backward.process_queries(head / s.heads, head % s.heads, block % tiles_q, last - head * tiles_q);
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
  if (is_cuda(stream))
    return cuda::attention_backward(dq, dk, dv, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
  const AttentionSums to{dq, dk, dv, shape.q, shape.k, shape.v};
  HWY_DYNAMIC_DISPATCH(attention_backward_tiles)(to, false, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
}

void attention_backward_block(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k,
                              const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                              const device::Stream& stream) {
  check_attention(shape);
  if (is_cuda(stream))
    return cuda::attention_backward_block(sums, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
  HWY_DYNAMIC_DISPATCH(attention_backward_tiles)(sums, true, d_o, o, q, k, v, lse, workspace, shape, dtype, stream);
}

int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::attention_workspace_bytes(shape, dtype, stream);
  const int64_t element = dtype == DType::f64 ? 8 : 4;
  // 64 bytes to align the start
  return 64 + stream.num_threads() * ((BackwardSizes(shape).per_thread() + 15) / 16 * 16) * element;
}

}  // namespace esp::kernel
#endif
