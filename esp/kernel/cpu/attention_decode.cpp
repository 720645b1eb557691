// Attention forward for a few queries, as in generation (decoding). Every key and value is read once and in place,
// because packing would cost more than it saves. Each score is one dot product. The heads of a group are processed
// together, so they read their common keys from cache.
#include <cmath>
#include <limits>

#include "esp/kernel/attention.h"
#include "esp/kernel/cpu/attention_work.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/attention_decode.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "esp/kernel/cpu/attention_dropout-inl.h"
#include "esp/kernel/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace flash {

template <typename T>
class Decode {
  using A = Accumulator<T>;
  static constexpr int64_t kTile = kAttentionTile;

 public:
  Decode(T* o, A* lse, const T* q, const T* k, const T* v, const AttentionShape& shape)
      : o_(o), lse_(lse), q_(q), k_(k), v_(v), s_(shape), dropout_(shape), width_(padded<A>(shape.head_dim)) {
    num_rows_ = s_.heads / s_.kv_heads * s_.num_queries;
    const int64_t row = ScratchAllocator<A>::rounded(num_rows_),
                  rows = ScratchAllocator<A>::rounded(num_rows_ * width_);
    ScratchAllocator<A> parts(static_cast<A*>(attention_scratch(static_cast<size_t>(2 * rows + 2 * row) * sizeof(A))));
    queries_ = parts.allocate(num_rows_ * width_);
    sums_ = parts.allocate(num_rows_ * width_);
    highest_ = parts.allocate(num_rows_);
    totals_ = parts.allocate(num_rows_);
  }

  // Processes the query heads of key/value head `group` of sequence b. Row r is query r % num_queries of query head r /
  // num_queries of the group.
  void run(int64_t b, int64_t group) {
    const int64_t first_head = group * (s_.heads / s_.kv_heads), most = visible_keys(s_, b, s_.num_queries - 1);
    const int64_t column = group * s_.head_dim;
    for (int64_t r = 0; r < num_rows_; ++r) {
      const int64_t h = first_head + r / s_.num_queries, i = r % s_.num_queries;
      load_row(queries_ + r * width_, q_ + b * s_.q.batch + i * s_.q.token + h * s_.head_dim, s_.head_dim,
               static_cast<A>(s_.scale * kLog2E));
      std::fill_n(sums_ + r * width_, width_, A{0});
      highest_[r] = std::numeric_limits<A>::lowest() / 4;
      totals_[r] = 0;
    }
    for (int64_t j = 0; j < most; j += kTile) {
      const T* keys = k_ + b * s_.k.batch + j * s_.k.token + column;
      const T* values = v_ + b * s_.v.batch + j * s_.v.token + column;
      for (int64_t r = 0; r < num_rows_; ++r) {
        const int64_t h = first_head + r / s_.num_queries, i = r % s_.num_queries;
        const int64_t seen = std::min(kTile, visible_keys(s_, b, i) - j);
        if (seen <= 0) continue;
        const A factor = softmax_weights(keys, r, seen);
        if (dropout_.active()) dropout_.apply(p_, b, h, i, j, seen);
        add_values(values, sums_ + r * width_, seen, factor);
      }
    }
    for (int64_t r = 0; r < num_rows_; ++r) store(b, first_head + r / s_.num_queries, r);
  }

 private:
  // Computes p_ = 2^(score − largest score so far) for `seen` keys. Returns the factor by which the sums of earlier
  // keys must be multiplied.
  A softmax_weights(const T* keys, int64_t r, int64_t seen) {
    const Tag<A> d;
    const A* q = queries_ + r * width_;
    auto highest = hn::Set(d, highest_[r]);
    for (int64_t j = 0; j < seen; ++j) {
      const T* key = keys + j * s_.k.token;
      hwy::Prefetch(key + kAhead * s_.k.token);
      hwy::Prefetch(reinterpret_cast<const char*>(key + kAhead * s_.k.token) + 128);
      p_[j] = dot(q, key);
    }
    for (int64_t j = seen; j < kTile + kLanes<A>; ++j) p_[j] = -std::numeric_limits<A>::infinity();
    for (int64_t j = 0; j < seen; j += kLanes<A>) highest = hn::Max(highest, hn::Load(d, p_ + j));
    const A now = hn::GetLane(hn::MaxOfLanes(d, highest));
    const A factor = hn::GetLane(exp2_lanes(d, hn::Set(d, highest_[r] - now)));
    auto total = hn::Zero(d);
    for (int64_t j = 0; j < seen; j += kLanes<A>) {
      const auto p = exp2_lanes(d, hn::Sub(hn::Load(d, p_ + j), hn::Set(d, now)));
      hn::Store(p, d, p_ + j);
      total = hn::Add(total, p);
    }
    totals_[r] = totals_[r] * factor + hn::GetLane(hn::SumOfLanes(d, total));
    highest_[r] = now;
    return factor;
  }

  HWY_INLINE A dot(const A* q, const T* key) const {
    const Tag<A> d;
    auto even = hn::Zero(d), odd = hn::Zero(d);
    int64_t c = 0;
    for (; c + 2 * kLanes<A> <= s_.head_dim; c += 2 * kLanes<A>) {
      even = hn::MulAdd(load_lanes(key + c), hn::Load(d, q + c), even);
      odd = hn::MulAdd(load_lanes(key + c + kLanes<A>), hn::Load(d, q + c + kLanes<A>), odd);
    }
    for (; c + kLanes<A> <= s_.head_dim; c += kLanes<A>)
      even = hn::MulAdd(load_lanes(key + c), hn::Load(d, q + c), even);
    A sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
    for (; c < s_.head_dim; ++c) sum += static_cast<A>(key[c]) * q[c];
    return sum;
  }

  void add_values(const T* values, A* sum, int64_t seen, A factor) const {
    const Tag<A> d;
    constexpr int64_t n = kLanes<A>;
    int64_t c = 0;
    for (; c + 4 * n <= s_.head_dim; c += 4 * n) {
      const auto by = hn::Set(d, factor);
      auto s0 = hn::Mul(hn::Load(d, sum + c), by), s1 = hn::Mul(hn::Load(d, sum + c + n), by);
      auto s2 = hn::Mul(hn::Load(d, sum + c + 2 * n), by), s3 = hn::Mul(hn::Load(d, sum + c + 3 * n), by);
      for (int64_t j = 0; j < seen; ++j) {
        const T* value = values + j * s_.v.token + c;
        hwy::Prefetch(value + kAhead * s_.v.token);
        hwy::Prefetch(reinterpret_cast<const char*>(value + kAhead * s_.v.token) + 128);
        const auto p = hn::Set(d, p_[j]);
        s0 = hn::MulAdd(p, load_lanes(value), s0);
        s1 = hn::MulAdd(p, load_lanes(value + n), s1);
        s2 = hn::MulAdd(p, load_lanes(value + 2 * n), s2);
        s3 = hn::MulAdd(p, load_lanes(value + 3 * n), s3);
      }
      hn::Store(s0, d, sum + c);
      hn::Store(s1, d, sum + c + n);
      hn::Store(s2, d, sum + c + 2 * n);
      hn::Store(s3, d, sum + c + 3 * n);
    }
    for (; c + n <= s_.head_dim; c += n) {
      auto s = hn::Mul(hn::Load(d, sum + c), hn::Set(d, factor));
      for (int64_t j = 0; j < seen; ++j) s = hn::MulAdd(hn::Set(d, p_[j]), load_lanes(values + j * s_.v.token + c), s);
      hn::Store(s, d, sum + c);
    }
    for (; c < s_.head_dim; ++c) {
      sum[c] *= factor;
      for (int64_t j = 0; j < seen; ++j) sum[c] += p_[j] * static_cast<A>(values[j * s_.v.token + c]);
    }
  }

  void store(int64_t b, int64_t h, int64_t r) const {
    const int64_t i = r % s_.num_queries;
    const bool any = visible_keys(s_, b, i) > 0;
    const A kept = static_cast<A>(1 / (1 - s_.dropout));
    store_row(o_ + b * s_.o.batch + i * s_.o.token + h * s_.head_dim, sums_ + r * width_, s_.head_dim,
              any ? kept / totals_[r] : A{0});
    lse_[(b * s_.heads + h) * s_.lse_stride() + i] =
        any ? (highest_[r] + std::log2(totals_[r])) * static_cast<A>(kLn2) : -std::numeric_limits<A>::infinity();
  }

  // Prefetch distance in tokens. The hardware prefetcher does not follow strides of a whole token.
  static constexpr int64_t kAhead = 12;

  T* const o_;
  A* const lse_;
  const T *const q_, *const k_, *const v_;
  const AttentionShape& s_;
  RowDropout dropout_;
  const int64_t width_;
  int64_t num_rows_;
  A *queries_, *sums_, *highest_, *totals_;
  HWY_ALIGN A p_[kTile + kLanes<A>];
};

}  // namespace flash

void attention_decode_heads(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& s,
                            DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto cost = [&](int64_t unit) { return 1 + visible_keys(s, unit / s.kv_heads, s.num_queries - 1); };
    split_by_cost(stream, s.batch * s.kv_heads, cost, [&](int64_t, int64_t begin, int64_t end) {
      flash::Decode<T> decode(static_cast<T*>(o), static_cast<Accumulator<T>*>(lse), static_cast<const T*>(q),
                              static_cast<const T*>(k), static_cast<const T*>(v), s);
      for (int64_t unit = begin; unit < end; ++unit) decode.run(unit / s.kv_heads, unit % s.kv_heads);
    });
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(attention_decode_heads);

void attention_decode(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                      DType dtype, const device::Stream& stream) {
  HWY_DYNAMIC_DISPATCH(attention_decode_heads)(o, lse, q, k, v, shape, dtype, stream);
}

}  // namespace esp::kernel
#endif
