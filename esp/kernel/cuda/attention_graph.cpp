#include "esp/kernel/cuda/attention_graph.h"

namespace esp::kernel::cuda {
namespace {

class Builder {
 public:
  Builder(const AttentionShape& s, DType dtype, DiagonalMask mask, cudnnHandle_t handle)
      : s_(s), mask_(mask), type_(dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF), graph_(handle) {
    const int64_t D = s.head_dim;
    q_ = graph_.tensor(kQ, type_, {s.batch, s.heads, s.num_queries, D}, {s.q.batch, D, s.q.token, 1});
    k_ = graph_.tensor(kK, type_, {s.batch, s.kv_heads, D, s.num_keys}, {s.k.batch, D, 1, s.k.token});
    scale_ = graph_.value(kScale, CUDNN_DATA_FLOAT);
    if (mask != DiagonalMask::none || s.key_lengths) lowest_ = graph_.value(kLowest, CUDNN_DATA_FLOAT);
    if (s.key_lengths) {
      query_lengths_ = graph_.tensor(kQueryLengths, CUDNN_DATA_INT32, {s.batch, 1, 1, 1}, {1, 1, 1, 1});
      key_lengths_ = graph_.tensor(kKeyLengths, CUDNN_DATA_INT32, {s.batch, 1, 1, 1}, {1, 1, 1, 1});
    }
  }

  std::optional<CudnnPlan> forward() {
    const int64_t D = s_.head_dim;
    const GraphTensor v =
        graph_.tensor(kV, type_, {s_.batch, s_.kv_heads, s_.num_keys, D}, {s_.v.batch, D, s_.v.token, 1});
    const GraphTensor o = tensor_o(kO), stats = tensor_stats();
    const GraphTensor scores = masked(padded_scores(scaled_scores()));
    const GraphTensor top = graph_.virtual_tensor(per_query()), sum = graph_.virtual_tensor(per_query());
    graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, top, scores);
    const GraphTensor exponentials =
        graph_.pointwise(CUDNN_POINTWISE_EXP, graph_.pointwise(CUDNN_POINTWISE_SUB, scores, top));
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, sum, exponentials);
    const GraphTensor log = graph_.pointwise(CUDNN_POINTWISE_LOG, sum);
    graph_.apply(CUDNN_POINTWISE_ADD, stats, top, &log);
    const GraphTensor p = graph_.virtual_tensor(square(), type_);
    graph_.apply(CUDNN_POINTWISE_DIV, p, exponentials, &sum);
    graph_.matmul(o, p, v, {.m = lengths(query_lengths_), .k = lengths(key_lengths_)});
    return graph_.plan();
  }

  std::optional<CudnnPlan> backward(bool deterministic) {
    const int64_t D = s_.head_dim, B = s_.batch, H = s_.heads;
    const GraphTensor v = graph_.tensor(kV, type_, {B, s_.kv_heads, D, s_.num_keys}, {s_.v.batch, D, 1, s_.v.token});
    const GraphTensor o = tensor_o(kO), d_o = tensor_o(kDo), stats = tensor_stats(),
                      one = graph_.value(kOne, CUDNN_DATA_FLOAT);
    // dots = dO·o, one number per query
    const GraphTensor products = graph_.virtual_tensor({B, H, s_.num_queries, D});
    graph_.apply(CUDNN_POINTWISE_MUL, products, d_o, &o);
    const GraphTensor raw_dots = graph_.virtual_tensor(per_query());
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, raw_dots, products);
    const GraphTensor dots =
        graph_.tensor(kDots, CUDNN_DATA_FLOAT, per_query(), {H * s_.num_queries, s_.num_queries, 1, 1});
    graph_.apply(CUDNN_POINTWISE_MUL, dots, raw_dots, &one);
    // p = exp(s − lse), and dV = pᵀ·dO
    const GraphTensor centred = graph_.pointwise(CUDNN_POINTWISE_SUB, scaled_scores(), stats);
    const GraphTensor p = graph_.pointwise(CUDNN_POINTWISE_EXP, masked(padded_scores(centred)));
    product_by_key(kDv, s_.v, transposed(p), d_o);
    // dS = p∘(dO·Vᵀ − dO·o)·scale
    const GraphTensor dp = graph_.virtual_tensor(square());
    graph_.matmul(dp, d_o, v, {.m = lengths(query_lengths_), .n = lengths(key_lengths_)});
    const GraphTensor weighted =
        graph_.pointwise(CUDNN_POINTWISE_MUL, graph_.pointwise(CUDNN_POINTWISE_SUB, dp, dots), p);
    const GraphTensor ds = graph_.pointwise(CUDNN_POINTWISE_MUL, weighted, scale_);
    product_by_key(kDk, s_.k, transposed(ds), q_);
    // dQ = dS·K. By default several blocks add to dQ in fp32. In deterministic mode dS is stored and dQ is computed
    // from it.
    const GraphTensor k =
        graph_.virtual_tensor({B, s_.kv_heads, s_.num_keys, D}, {s_.k.batch, D, s_.k.token, 1}, type_);
    graph_.reshape(k, k_);
    const GraphTensor dq = graph_.tensor(kDq, type_, q_.dims, q_.strides);
    const CudnnGraph::Lengths by_query{.m = lengths(query_lengths_), .k = lengths(key_lengths_)};
    if (deterministic) {
      graph_.matmul(dq, ds, k, by_query);
    } else {
      const GraphTensor sums =
          graph_.tensor(kDqSums, CUDNN_DATA_FLOAT, q_.dims, {H * s_.num_queries * D, s_.num_queries * D, D, 1});
      graph_.matmul(sums, ds, k, by_query);
      graph_.apply(CUDNN_POINTWISE_IDENTITY, dq, sums);
    }
    return graph_.plan();
  }

 private:
  Shape4 square() const { return {s_.batch, s_.heads, s_.num_queries, s_.num_keys}; }
  Shape4 per_query() const { return {s_.batch, s_.heads, s_.num_queries, 1}; }
  const GraphTensor* lengths(const std::optional<GraphTensor>& one) const { return one ? &*one : nullptr; }

  GraphTensor tensor_o(int64_t id) {
    const int64_t D = s_.head_dim;
    return graph_.tensor(id, type_, {s_.batch, s_.heads, s_.num_queries, D}, {s_.o.batch, D, s_.o.token, 1});
  }
  GraphTensor tensor_stats() {
    const int64_t row = s_.lse_stride();
    return graph_.tensor(kStats, CUDNN_DATA_FLOAT, per_query(), {s_.heads * row, row, 1, 1});
  }

  GraphTensor scaled_scores() {
    const GraphTensor scores = graph_.virtual_tensor(square());
    graph_.matmul(scores, q_, k_, {.m = lengths(query_lengths_), .n = lengths(key_lengths_)});
    return graph_.pointwise(CUDNN_POINTWISE_MUL, scores, scale_);
  }

  GraphTensor index(const GraphTensor& of, int64_t axis, cudnnDataType_t compute) {
    const GraphTensor made = graph_.virtual_tensor(of.dims, CUDNN_DATA_INT32);
    graph_.apply(CUDNN_POINTWISE_GEN_INDEX, made, of, nullptr, nullptr, compute, axis);
    return made;
  }
  GraphTensor compare(cudnnPointwiseMode_t mode, const GraphTensor& a, const GraphTensor& b) {
    const GraphTensor made = graph_.virtual_tensor(a.dims, CUDNN_DATA_BOOLEAN);
    graph_.apply(mode, made, a, &b, nullptr, CUDNN_DATA_BOOLEAN);
    return made;
  }
  GraphTensor select(const GraphTensor& scores, const GraphTensor& mask) {
    const GraphTensor made = graph_.virtual_tensor(scores.dims);
    graph_.apply(CUDNN_POINTWISE_BINARY_SELECT, made, scores, &*lowest_, &mask);
    return made;
  }

  GraphTensor padded_scores(const GraphTensor& scores) {
    if (!key_lengths_) return scores;
    const GraphTensor row = index(scores, 2, CUDNN_DATA_INT32), column = index(scores, 3, CUDNN_DATA_INT32);
    const GraphTensor row_here = compare(CUDNN_POINTWISE_CMP_LT, row, *query_lengths_);
    const GraphTensor column_here = compare(CUDNN_POINTWISE_CMP_LT, column, *key_lengths_);
    return select(scores, compare(CUDNN_POINTWISE_LOGICAL_AND, row_here, column_here));
  }

  GraphTensor masked(const GraphTensor& scores) {
    if (mask_ == DiagonalMask::none) return scores;
    GraphTensor row = index(scores, 2, CUDNN_DATA_FLOAT);
    const GraphTensor column = index(scores, 3, CUDNN_DATA_FLOAT);
    if (mask_ == DiagonalMask::bottom_right) {
      auto shifted = [&](cudnnPointwiseMode_t mode, int64_t id) {
        const GraphTensor by = graph_.value(id, CUDNN_DATA_INT32),
                          made = graph_.virtual_tensor(row.dims, CUDNN_DATA_INT32);
        graph_.apply(mode, made, row, &by, nullptr, CUDNN_DATA_INT32);
        row = made;
      };
      shifted(CUDNN_POINTWISE_ADD, kNumKeys);
      shifted(CUDNN_POINTWISE_SUB, kNumQueries);
    }
    return select(scores, compare(CUDNN_POINTWISE_CMP_GE, row, column));
  }

  GraphTensor transposed(const GraphTensor& x) {
    const int64_t area = s_.num_queries * s_.num_keys;
    const GraphTensor made = graph_.virtual_tensor({s_.batch, s_.heads, s_.num_keys, s_.num_queries},
                                                   {s_.heads * area, area, 1, s_.num_keys}, type_);
    graph_.reshape(made, x);
    return made;
  }

  // Computes a gradient of keys or values: left [.., keys, queries]·right [.., queries, D], summed over the heads of a
  // group.
  void product_by_key(int64_t id, const AttentionStride& stride, const GraphTensor& left, const GraphTensor& right) {
    const int64_t D = s_.head_dim;
    const CudnnGraph::Lengths by_key{.m = lengths(key_lengths_), .k = lengths(query_lengths_)};
    const GraphTensor to =
        graph_.tensor(id, type_, {s_.batch, s_.kv_heads, s_.num_keys, D}, {stride.batch, D, stride.token, 1});
    if (s_.heads == s_.kv_heads) return graph_.matmul(to, left, right, by_key);
    const GraphTensor every_head = graph_.virtual_tensor({s_.batch, s_.heads, s_.num_keys, D}, type_);
    graph_.matmul(every_head, left, right, by_key);
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, to, every_head);
  }

  const AttentionShape& s_;
  DiagonalMask mask_;
  cudnnDataType_t type_;
  CudnnGraph graph_;
  GraphTensor q_, k_, scale_;
  std::optional<GraphTensor> lowest_, query_lengths_, key_lengths_;
};

}  // namespace

std::optional<CudnnPlan> forward_plan(const AttentionShape& shape, DType dtype, DiagonalMask mask,
                                      cudnnHandle_t handle) {
  return Builder(shape, dtype, mask, handle).forward();
}

std::optional<CudnnPlan> backward_plan(const AttentionShape& shape, DType dtype, DiagonalMask mask, bool deterministic,
                                       cudnnHandle_t handle) {
  return Builder(shape, dtype, mask, handle).backward(deterministic);
}

}  // namespace esp::kernel::cuda
