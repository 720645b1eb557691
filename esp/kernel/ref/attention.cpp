#include "esp/kernel/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "esp/base/rng.h"
#include "esp/kernel/floating.h"

namespace esp::kernel::ref {
namespace {

int64_t num_visible(const AttentionShape& s, int64_t b, int64_t i) {
  int64_t n = s.key_lengths ? s.key_lengths[b] : s.num_keys;
  return std::clamp<int64_t>(s.causal ? std::min(n, i + s.causal_offset + 1) : n, 0, s.num_keys);
}

// Dropout factor of probability (b, h, i, j): 1/(1 − rate) if it is kept, else 0.
template <typename A>
A kept(const AttentionShape& s, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (s.dropout == 0) return A{1};
  const auto index = static_cast<uint64_t>(s.dropout_index(b, h, i, j));
  auto words = philox({static_cast<uint32_t>(index >> 2), static_cast<uint32_t>(index >> 34),
                       static_cast<uint32_t>(s.key.purpose), static_cast<uint32_t>(s.key.purpose >> 32)},
                      {static_cast<uint32_t>(s.key.seed), static_cast<uint32_t>(s.key.seed >> 32)});
  return words[index % 4] >= s.dropout * 0x1p32 ? static_cast<A>(1 / (1 - s.dropout)) : A{0};
}

template <typename T>
struct Heads {  // addresses element (b, t, h, d) of a tensor
  T* data;
  AttentionStride stride;
  int64_t head_dim;
  T& operator()(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return data[b * stride.batch + t * stride.token + h * head_dim + d];
  }
};

template <typename T>
Accumulator<T> dot(const Heads<const T>& x, int64_t i, int64_t hx, const Heads<const T>& y, int64_t j, int64_t hy,
                   int64_t b) {
  using A = Accumulator<T>;
  A sum = 0;
  for (int64_t d = 0; d < x.head_dim; ++d) sum += static_cast<A>(x(b, i, hx, d)) * static_cast<A>(y(b, j, hy, d));
  return sum;
}

template <typename F>
void each_query(const AttentionShape& s, F&& f) {
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.num_queries; ++i) f(b, h, i, h / (s.heads / s.kv_heads));
}

template <typename T, typename O>
void forward(O* out, Accumulator<T>* lse, const T* queries, const T* keys, const T* values, const AttentionShape& s) {
  using A = Accumulator<T>;
  const Heads<O> o{out, s.o, s.head_dim};
  const Heads<const T> q{queries, s.q, s.head_dim}, k{keys, s.k, s.head_dim}, v{values, s.v, s.head_dim};
  std::vector<A> p(s.num_keys), sums(s.head_dim);
  each_query(s, [&](int64_t b, int64_t h, int64_t i, int64_t g) {
    const int64_t n = num_visible(s, b, i);
    A highest = -std::numeric_limits<A>::infinity(), total = 0;
    for (int64_t j = 0; j < n; ++j)
      highest = std::max(highest, p[j] = dot(q, i, h, k, j, g, b) * static_cast<A>(s.scale));
    for (int64_t j = 0; j < n; ++j) total += p[j] = std::exp(p[j] - highest);
    std::fill(sums.begin(), sums.end(), A{0});
    for (int64_t j = 0; j < n; ++j)
      for (int64_t d = 0; d < s.head_dim; ++d)
        sums[d] += p[j] / total * kept<A>(s, b, h, i, j) * static_cast<A>(v(b, j, g, d));
    for (int64_t d = 0; d < s.head_dim; ++d) o(b, i, h, d) = static_cast<O>(sums[d]);
    lse[(b * s.heads + h) * s.lse_stride() + i] = n ? highest + std::log(total) : highest;
  });
}

// Merges result 2 (o, lse) into result 1: O₁ − sigmoid(LSE₂ − LSE₁)·(O₁ − O₂), and lse = log(e^LSE₁ + e^LSE₂).
template <typename A>
void merge(A* out, A* lse, const A* block, const A* block_lse, const AttentionShape& s) {
  const Heads<A> o{out, s.o, s.head_dim};
  const Heads<const A> other{block, s.o, s.head_dim};
  each_query(s, [&](int64_t b, int64_t h, int64_t i, int64_t) {
    const int64_t row = (b * s.heads + h) * s.lse_stride() + i;
    const A first = lse[row], second = block_lse[row], never = -std::numeric_limits<A>::infinity();
    const A weight = first == never ? A{1} : second == never ? A{0} : 1 / (1 + std::exp(first - second));
    for (int64_t d = 0; d < s.head_dim; ++d) {
      A& to = o(b, i, h, d);
      to = first == never ? other(b, i, h, d) : to - weight * (to - other(b, i, h, d));
    }
    const A higher = std::max(first, second);
    if (higher != never) lse[row] = higher + std::log1p(std::exp(std::min(first, second) - higher));
  });
}

// Sums each gradient in the accumulation type. Then stores it in storage type, or (backward of a block) adds it to the
// sums in `to`.
template <typename T, typename G>
void backward(G* dq, G* dk, G* dv, const AttentionSums& to, const T* d_out, const T* out, const T* queries,
              const T* keys, const T* values, const Accumulator<T>* lse, const AttentionShape& s) {
  auto put = [](G& at, Accumulator<T> value, bool add) {
    at = static_cast<G>(add ? static_cast<Accumulator<T>>(at) + value : value);
  };
  using A = Accumulator<T>;
  const Heads<const T> d_o{d_out, s.o, s.head_dim}, o{out, s.o, s.head_dim};
  const Heads<const T> q{queries, s.q, s.head_dim}, k{keys, s.k, s.head_dim}, v{values, s.v, s.head_dim};
  const int64_t num_kv = s.batch * s.num_keys * s.kv_heads * s.head_dim, D = s.head_dim;
  std::vector<A> sum_q(D), sum_k(num_kv), sum_v(num_kv);  // dk and dv are rounded once, after the last query
  const AttentionStride packed{s.num_keys * s.kv_heads * D, s.kv_heads * D};
  const Heads<A> acc_k{sum_k.data(), packed, D}, acc_v{sum_v.data(), packed, D};
  each_query(s, [&](int64_t b, int64_t h, int64_t i, int64_t g) {
    const int64_t n = num_visible(s, b, i);
    const A mean = dot(d_o, i, h, o, i, h, b);  // Σ_j p_j·dp_j
    std::fill(sum_q.begin(), sum_q.end(), A{0});
    for (int64_t j = 0; j < n; ++j) {
      const A score = dot(q, i, h, k, j, g, b) * static_cast<A>(s.scale), keep = kept<A>(s, b, h, i, j);
      const A p = std::exp(score - lse[(b * s.heads + h) * s.lse_stride() + i]);
      const A ds = p * (dot(d_o, i, h, v, j, g, b) * keep - mean) * static_cast<A>(s.scale);
      for (int64_t d = 0; d < D; ++d) {
        sum_q[d] += ds * static_cast<A>(k(b, j, g, d));
        acc_k(b, j, g, d) += ds * static_cast<A>(q(b, i, h, d));
        acc_v(b, j, g, d) += p * keep * static_cast<A>(d_o(b, i, h, d));
      }
    }
    for (int64_t d = 0; d < D; ++d) put(Heads<G>{dq, to.q, D}(b, i, h, d), sum_q[d], to.add_q);
  });
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t j = 0; j < s.num_keys; ++j)
      for (int64_t g = 0; g < s.kv_heads; ++g)
        for (int64_t d = 0; d < D; ++d) {
          put(Heads<G>{dk, to.k, D}(b, j, g, d), acc_k(b, j, g, d), to.add_kv);
          put(Heads<G>{dv, to.v, D}(b, j, g, d), acc_v(b, j, g, d), to.add_kv);
        }
}

}  // namespace

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    forward<T>(static_cast<T*>(o), static_cast<Accumulator<T>*>(lse), static_cast<const T*>(q),
               static_cast<const T*>(k), static_cast<const T*>(v), shape);
  });
}

void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, const AttentionShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    const AttentionSums to{nullptr, nullptr, nullptr, shape.q, shape.k, shape.v, false, false};
    backward<T>(static_cast<T*>(dq), static_cast<T*>(dk), static_cast<T*>(dv), to, static_cast<const T*>(d_o),
                static_cast<const T*>(o), static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                static_cast<const Accumulator<T>*>(lse), shape);
  });
}

void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    std::vector<A> block(shape.batch * shape.o.batch), block_lse(shape.batch * shape.heads * shape.lse_stride());
    forward<T>(block.data(), block_lse.data(), static_cast<const T*>(q), static_cast<const T*>(k),
               static_cast<const T*>(v), shape);
    merge(static_cast<A*>(o), static_cast<A*>(lse), block.data(), block_lse.data(), shape);
  });
}

void attention_backward_block(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k,
                              const void* v, const void* lse, const AttentionShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    backward<T>(static_cast<A*>(sums.dq), static_cast<A*>(sums.dk), static_cast<A*>(sums.dv), sums,
                static_cast<const T*>(d_o), static_cast<const T*>(o), static_cast<const T*>(q),
                static_cast<const T*>(k), static_cast<const T*>(v), static_cast<const A*>(lse), shape);
  });
}

}  // namespace esp::kernel::ref
