#include "esp/kernel/cuda/attention_cudnn.h"

#include <array>
#include <limits>
#include <map>
#include <optional>

#include "esp/base/check.h"
#include "esp/device/cuda/check.h"
#include "esp/kernel/cuda/attention_settings.h"
#include "esp/kernel/cuda/attention_tile.h"
#include "esp/kernel/cuda/cudnn_graph.h"

namespace esp::kernel::cuda {
namespace {

// Numbers of the tensors that have addresses.
enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kScale,
  kLowest,
  kOne,
  kQueryLengths,
  kKeyLengths,
  kDo,
  kDq,
  kDk,
  kDv,
  kDots,
  kDqSums,
  kNumQueries,
  kNumKeys
};

// Where the diagonal lies: query i sees key j ≤ i, or j ≤ i + keys − queries.
enum class Mask : int64_t { none, top_left, bottom_right };

std::optional<Mask> mask_of(const AttentionShape& s) {
  if (!s.causal) return Mask::none;
  if (s.causal_offset == 0) return Mask::top_left;
  // With lengths the library counts from each sequence's end, which is not what an offset means.
  if (s.causal_offset == s.num_keys - s.num_queries && !s.key_lengths) return Mask::bottom_right;
  return std::nullopt;
}

using Key = std::array<int64_t, 20>;

Key key_of(const AttentionShape& s, DType dtype, Mask mask, int64_t which) {
  return {s.batch,
          s.num_queries,
          s.num_keys,
          s.heads,
          s.kv_heads,
          s.head_dim,
          s.q.batch,
          s.q.token,
          s.k.batch,
          s.k.token,
          s.v.batch,
          s.v.token,
          s.o.batch,
          s.o.token,
          s.lse_stride(),
          static_cast<int64_t>(mask),
          s.key_lengths != nullptr,
          static_cast<int64_t>(dtype),
          which,
          0};
}

int64_t padded(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

struct Library {
  cudnnHandle_t handle = nullptr;
  AttentionSettings settings;
  std::map<Key, std::optional<CudnnPlan>> plans;

  Library() { ESP_CUDNN_CHECK(cudnnCreate(&handle)); }
  ~Library() {
    plans.clear();
    if (handle) cudnnDestroy(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

class Builder {
 public:
  Builder(const AttentionShape& s, DType dtype, Mask mask, cudnnHandle_t handle)
      : s_(s), mask_(mask), type_(dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF), graph_(handle) {
    const int64_t D = s.head_dim;
    q_ = graph_.tensor(kQ, type_, {s.batch, s.heads, s.num_queries, D}, {s.q.batch, D, s.q.token, 1});
    k_ = graph_.tensor(kK, type_, {s.batch, s.kv_heads, D, s.num_keys}, {s.k.batch, D, 1, s.k.token});
    scale_ = graph_.value(kScale, CUDNN_DATA_FLOAT);
    if (mask != Mask::none || s.key_lengths) lowest_ = graph_.value(kLowest, CUDNN_DATA_FLOAT);
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
    // dO·o, one number per query
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
    // dQ = dS·K: summed in fp32 by several blocks at once, or, for one order of the sums, from a stored dS.
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
    if (mask_ == Mask::none) return scores;
    GraphTensor row = index(scores, 2, CUDNN_DATA_FLOAT);
    const GraphTensor column = index(scores, 3, CUDNN_DATA_FLOAT);
    if (mask_ == Mask::bottom_right) {
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

  // A gradient of keys or values: left [.., keys, queries]·right [.., queries, D], summed over the heads that share it.
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
  Mask mask_;
  cudnnDataType_t type_;
  CudnnGraph graph_;
  GraphTensor q_, k_, scale_;
  std::optional<GraphTensor> lowest_, query_lengths_, key_lengths_;
};

bool worth_asking(const AttentionShape& s, DType dtype, int64_t largest_head) {
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  const int64_t strides = s.q.batch | s.q.token | s.k.batch | s.k.token | s.v.batch | s.v.token | s.o.batch | s.o.token;
  return half && s.dropout == 0 && s.head_dim % 8 == 0 && s.head_dim <= largest_head && strides % 8 == 0 &&
         s.batch > 0 && s.num_queries > 1 && s.num_keys > 1;
}

// Null: our own kernels.
const CudnnPlan* plan_of(const AttentionShape& s, DType dtype, bool backward, device::Queue& queue) {
  const std::optional<Mask> mask = mask_of(s);
  if (!mask || !worth_asking(s, dtype, backward ? 128 : 256)) return nullptr;
  auto& library = queue.own<Library>();
  if (!library.settings.cudnn) return nullptr;
  const int64_t which = !backward ? 0 : library.settings.deterministic ? 1 : 2;
  const auto [place, fresh] = library.plans.try_emplace(key_of(s, dtype, *mask, which));
  if (fresh) {
    ESP_CUDNN_CHECK(cudnnSetStream(library.handle, queue.handle));
    Builder builder(s, dtype, *mask, library.handle);
    place->second = backward ? builder.backward(library.settings.deterministic) : builder.forward();
  }
  return place->second ? &*place->second : nullptr;
}

int64_t lengths_bytes(const AttentionShape& s) {
  return s.key_lengths ? padded(s.batch * 4) : 0;
}
int64_t dots_bytes(const AttentionShape& s) {
  return padded(s.batch * s.heads * s.num_queries * 4);
}
int64_t dq_bytes(const AttentionShape& s, device::Queue& queue) {
  return queue.own<Library>().settings.deterministic ? 0 : padded(s.batch * s.heads * s.num_queries * s.head_dim * 4);
}

// Tensor numbers with their addresses; host values live in the struct for the length of the call.
struct Arguments {
  float scale, lowest = -std::numeric_limits<float>::infinity(), one = 1;
  int32_t num_queries, num_keys;
  std::vector<int64_t> ids;
  std::vector<void*> addresses;

  Arguments(const AttentionShape& s, Mask mask, std::byte*& scratch, cudaStream_t stream)
      : scale(static_cast<float>(s.scale)),
        num_queries(static_cast<int32_t>(s.num_queries)),
        num_keys(static_cast<int32_t>(s.num_keys)) {
    add(kScale, &scale);
    if (mask != Mask::none || s.key_lengths) add(kLowest, &lowest);
    if (mask == Mask::bottom_right) {
      add(kNumQueries, &num_queries);
      add(kNumKeys, &num_keys);
    }
    if (s.key_lengths) {  // every query counts: their lengths are all the same
      fill_int32(reinterpret_cast<int32_t*>(scratch), s.batch, num_queries, stream);
      add(kQueryLengths, scratch);
      add(kKeyLengths, s.key_lengths);
      scratch += lengths_bytes(s);
    }
  }
  Arguments(const Arguments&) = delete;
  void add(int64_t id, const void* address) {
    ids.push_back(id);
    addresses.push_back(const_cast<void*>(address));
  }
};

// Zeros over a gradient of keys or values, whose rows lie `stride.token` apart. 16-bit types.
void clear(void* gradient, const AttentionStride& stride, const AttentionShape& s, cudaStream_t stream) {
  const auto pitch = static_cast<size_t>(stride.token * 2), width = static_cast<size_t>(s.kv_heads * s.head_dim * 2);
  for (int64_t b = 0; b < s.batch; ++b)
    ESP_CUDA_CHECK(cudaMemset2DAsync(static_cast<std::byte*>(gradient) + b * stride.batch * 2, pitch, 0, width,
                                     static_cast<size_t>(s.num_keys), stream));
}

}  // namespace

int64_t cudnn_forward_bytes(const AttentionShape& shape, DType dtype, device::Queue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, false, queue);
  return plan ? lengths_bytes(shape) + plan->workspace_bytes() : -1;
}

int64_t cudnn_backward_bytes(const AttentionShape& shape, DType dtype, device::Queue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, true, queue);
  return plan ? lengths_bytes(shape) + dots_bytes(shape) + dq_bytes(shape, queue) + plan->workspace_bytes() : -1;
}

void cudnn_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                   const AttentionShape& shape, DType dtype, device::Queue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, false, queue);
  ESP_CHECK(plan, "cuDNN has no forward for this shape");
  auto* rest = static_cast<std::byte*>(scratch);
  Arguments arguments(shape, *mask_of(shape), rest, queue.handle);
  arguments.add(kQ, q);
  arguments.add(kK, k);
  arguments.add(kV, v);
  arguments.add(kO, o);
  arguments.add(kStats, lse);
  auto& library = queue.own<Library>();
  plan->run(library.handle, arguments.ids, arguments.addresses, rest);
}

void cudnn_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                    const void* v, const void* lse, void* scratch, const AttentionShape& shape, DType dtype,
                    device::Queue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, true, queue);
  ESP_CHECK(plan, "cuDNN has no backward for this shape");
  auto* rest = static_cast<std::byte*>(scratch);
  Arguments arguments(shape, *mask_of(shape), rest, queue.handle);
  arguments.add(kQ, q);
  arguments.add(kK, k);
  arguments.add(kV, v);
  arguments.add(kO, o);
  arguments.add(kStats, lse);
  arguments.add(kDo, d_o);
  arguments.add(kDq, dq);
  arguments.add(kDk, dk);
  arguments.add(kDv, dv);
  if (shape.key_lengths) {  // the library leaves alone what a sequence of no keys has
    clear(dk, shape.k, shape, queue.handle);
    clear(dv, shape.v, shape, queue.handle);
  }
  arguments.add(kOne, &arguments.one);
  arguments.add(kDots, rest);
  rest += dots_bytes(shape);
  auto& library = queue.own<Library>();
  if (!library.settings.deterministic) {
    arguments.add(kDqSums, rest);
    rest += dq_bytes(shape, queue);
  }
  plan->run(library.handle, arguments.ids, arguments.addresses, rest);
}

void set_attention(const AttentionSettings& settings, const device::Stream& stream) {
  device::queue_of(stream).own<Library>().settings = settings;
}

AttentionSettings attention_settings(const device::Stream& stream) {
  return device::queue_of(stream).own<Library>().settings;
}

}  // namespace esp::kernel::cuda
