#include "esp/kernel/cuda/attention_cudnn.h"

#include <array>
#include <limits>
#include <map>
#include <optional>

#include "esp/base/check.h"
#include "esp/device/cuda/check.h"
#include "esp/kernel/cuda/attention_graph.h"
#include "esp/kernel/cuda/attention_settings.h"
#include "esp/kernel/cuda/attention_tile.h"

namespace esp::kernel::cuda {
namespace {

std::optional<DiagonalMask> diagonal_mask(const AttentionShape& s) {
  if (!s.causal) return DiagonalMask::none;
  if (s.causal_offset == 0) return DiagonalMask::top_left;
  // With key lengths, cuDNN aligns the diagonal to the end of each sequence. causal_offset does not depend on key
  // lengths, so bottom_right cannot be used.
  if (s.causal_offset == s.num_keys - s.num_queries && !s.key_lengths) return DiagonalMask::bottom_right;
  return std::nullopt;
}

using Key = std::array<int64_t, 20>;

Key key_of(const AttentionShape& s, DType dtype, DiagonalMask mask, int64_t which) {
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

struct CudnnState {
  cudnnHandle_t handle = nullptr;
  AttentionSettings settings;
  std::map<Key, std::optional<CudnnPlan>> plans;

  CudnnState() { ESP_CUDNN_CHECK(cudnnCreate(&handle)); }
  ~CudnnState() {
    plans.clear();
    if (handle) cudnnDestroy(handle);
  }
  CudnnState(const CudnnState&) = delete;
  CudnnState& operator=(const CudnnState&) = delete;
};

bool is_supported_shape(const AttentionShape& s, DType dtype, int64_t largest_head) {
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  const int64_t strides = s.q.batch | s.q.token | s.k.batch | s.k.token | s.v.batch | s.v.token | s.o.batch | s.o.token;
  return half && s.dropout == 0 && s.head_dim % 8 == 0 && s.head_dim <= largest_head && strides % 8 == 0 &&
         s.batch > 0 && s.num_queries > 1 && s.num_keys > 1;
}

// Returns the plan for this shape, or null if attention_tile.cu must be used instead of cuDNN.
const CudnnPlan* plan_of(const AttentionShape& s, DType dtype, bool backward, device::CudaQueue& queue) {
  const std::optional<DiagonalMask> mask = diagonal_mask(s);
  if (!mask || !is_supported_shape(s, dtype, backward ? 128 : 256)) return nullptr;
  auto& state = queue.get_or_create<CudnnState>();
  if (!state.settings.cudnn) return nullptr;
  const int64_t which = !backward ? 0 : state.settings.deterministic ? 1 : 2;
  const auto [place, fresh] = state.plans.try_emplace(key_of(s, dtype, *mask, which));
  if (fresh) {
    ESP_CUDNN_CHECK(cudnnSetStream(state.handle, queue.handle));
    place->second = backward ? backward_plan(s, dtype, *mask, state.settings.deterministic, state.handle)
                             : forward_plan(s, dtype, *mask, state.handle);
  }
  return place->second ? &*place->second : nullptr;
}

int64_t lengths_bytes(const AttentionShape& s) {
  return s.key_lengths ? padded(s.batch * 4) : 0;
}
int64_t dots_bytes(const AttentionShape& s) {
  return padded(s.batch * s.heads * s.num_queries * 4);
}
int64_t dq_bytes(const AttentionShape& s, device::CudaQueue& queue) {
  return queue.get_or_create<CudnnState>().settings.deterministic
             ? 0
             : padded(s.batch * s.heads * s.num_queries * s.head_dim * 4);
}

// Tensor ids and the addresses that cuDNN reads. Scalars passed from the host are members of this struct, so that their
// addresses stay valid during the call.
struct TensorAddresses {
  float scale, lowest = -std::numeric_limits<float>::infinity(), one = 1;
  int32_t num_queries, num_keys;
  std::vector<int64_t> ids;
  std::vector<void*> addresses;

  TensorAddresses(const AttentionShape& s, DiagonalMask mask, std::byte*& scratch, cudaStream_t stream)
      : scale(static_cast<float>(s.scale)),
        num_queries(static_cast<int32_t>(s.num_queries)),
        num_keys(static_cast<int32_t>(s.num_keys)) {
    add(kScale, &scale);
    if (mask != DiagonalMask::none || s.key_lengths) add(kLowest, &lowest);
    if (mask == DiagonalMask::bottom_right) {
      add(kNumQueries, &num_queries);
      add(kNumKeys, &num_keys);
    }
    if (s.key_lengths) {  // cuDNN also requires query lengths: all of them are num_queries
      fill_int32(reinterpret_cast<int32_t*>(scratch), s.batch, num_queries, stream);
      add(kQueryLengths, scratch);
      add(kKeyLengths, s.key_lengths);
      scratch += lengths_bytes(s);
    }
  }
  TensorAddresses(const TensorAddresses&) = delete;
  void add(int64_t id, const void* address) {
    ids.push_back(id);
    addresses.push_back(const_cast<void*>(address));
  }
};

// Sets a 16-bit gradient of keys or values to zero. Neighbouring rows are `stride.token` elements apart.
void clear(void* gradient, const AttentionStride& stride, const AttentionShape& s, cudaStream_t stream) {
  const auto pitch = static_cast<size_t>(stride.token * 2), width = static_cast<size_t>(s.kv_heads * s.head_dim * 2);
  for (int64_t b = 0; b < s.batch; ++b)
    ESP_CUDA_CHECK(cudaMemset2DAsync(static_cast<std::byte*>(gradient) + b * stride.batch * 2, pitch, 0, width,
                                     static_cast<size_t>(s.num_keys), stream));
}

}  // namespace

int64_t cudnn_forward_bytes(const AttentionShape& shape, DType dtype, device::CudaQueue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, false, queue);
  return plan ? lengths_bytes(shape) + plan->workspace_bytes() : -1;
}

int64_t cudnn_backward_bytes(const AttentionShape& shape, DType dtype, device::CudaQueue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, true, queue);
  return plan ? lengths_bytes(shape) + dots_bytes(shape) + dq_bytes(shape, queue) + plan->workspace_bytes() : -1;
}

void cudnn_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                   const AttentionShape& shape, DType dtype, device::CudaQueue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, false, queue);
  ESP_CHECK(plan, "attention forward: got a shape that cuDNN does not support (batch {}, {} heads, head_dim {})",
            shape.batch, shape.heads, shape.head_dim);
  auto* rest = static_cast<std::byte*>(scratch);
  TensorAddresses arguments(shape, *diagonal_mask(shape), rest, queue.handle);
  arguments.add(kQ, q);
  arguments.add(kK, k);
  arguments.add(kV, v);
  arguments.add(kO, o);
  arguments.add(kStats, lse);
  auto& state = queue.get_or_create<CudnnState>();
  plan->run(state.handle, arguments.ids, arguments.addresses, rest);
}

void cudnn_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                    const void* v, const void* lse, void* scratch, const AttentionShape& shape, DType dtype,
                    device::CudaQueue& queue) {
  const CudnnPlan* plan = plan_of(shape, dtype, true, queue);
  ESP_CHECK(plan, "attention backward: got a shape that cuDNN does not support (batch {}, {} heads, head_dim {})",
            shape.batch, shape.heads, shape.head_dim);
  auto* rest = static_cast<std::byte*>(scratch);
  TensorAddresses arguments(shape, *diagonal_mask(shape), rest, queue.handle);
  arguments.add(kQ, q);
  arguments.add(kK, k);
  arguments.add(kV, v);
  arguments.add(kO, o);
  arguments.add(kStats, lse);
  arguments.add(kDo, d_o);
  arguments.add(kDq, dq);
  arguments.add(kDk, dk);
  arguments.add(kDv, dv);
  if (shape.key_lengths) {  // cuDNN does not write dk and dv of a sequence without keys
    clear(dk, shape.k, shape, queue.handle);
    clear(dv, shape.v, shape, queue.handle);
  }
  arguments.add(kOne, &arguments.one);
  arguments.add(kDots, rest);
  rest += dots_bytes(shape);
  auto& state = queue.get_or_create<CudnnState>();
  if (!state.settings.deterministic) {
    arguments.add(kDqSums, rest);
    rest += dq_bytes(shape, queue);
  }
  plan->run(state.handle, arguments.ids, arguments.addresses, rest);
}

void set_attention(const AttentionSettings& settings, const device::Stream& stream) {
  device::queue_of(stream).get_or_create<CudnnState>().settings = settings;
}

AttentionSettings attention_settings(const device::Stream& stream) {
  return device::queue_of(stream).get_or_create<CudnnState>().settings;
}

}  // namespace esp::kernel::cuda
