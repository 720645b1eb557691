#include "esp/kernel/cuda/fp8_codes.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <map>
#include <utility>

#include "esp/kernel/cuda/activation.cuh"
#include "esp/kernel/cuda/column_sums.h"
#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/gemm_plan.h"
#include "esp/kernel/cuda/rows.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kSide = 64, kRun = 16;  // a tile's side; elements per thread
constexpr int kWarps = kThreads / 32;

struct Job {
  uint8_t *rows, *columns;
  float* sums;  // [tiles down, cols]
  Fp8Scale* state;
  __nv_fp8_interpretation_t kind;
  int64_t num_rows, cols, across;
};

// Sums over the eight rows of a warp (lanes that differ in bits 2 to 4) by halves: a lane ends with two of its sixteen
// columns, those from the returned on. Recursive, so that every index is known when compiled: the array stays in
// registers.
template <int kHalf, int kBit>
__device__ __forceinline__ int sum_rows_of_warp(float (&v)[kRun]) {
  const bool upper = threadIdx.x & kBit;
#pragma unroll
  for (int k = 0; k < kHalf; ++k) {
    const float gone = upper ? v[k] : v[k + kHalf], kept = upper ? v[k + kHalf] : v[k];
    v[k] = kept + __shfl_xor_sync(0xffffffffu, gone, kBit);
  }
  const int first = upper ? kHalf : 0;
  if constexpr (kHalf > 2)
    return first + sum_rows_of_warp<kHalf / 2, kBit / 2>(v);
  else
    return first;
}

// Sixteen neighbours; of a gated slope those of the gate and of what it gates.
template <Fp8Of what, Activation act, typename T, int kParts>
__device__ __forceinline__ void values_at(float (&v)[kParts][kRun], const T* x, const T* pre, int64_t row, int64_t col,
                                          int64_t width) {
  if constexpr (what == Fp8Of::gated) {
    const auto g = load_pack<kRun>(x + row * 2 * width + col), u = load_pack<kRun>(x + (row * 2 + 1) * width + col);
#pragma unroll
    for (int k = 0; k < kRun; ++k) v[0][k] = activate<Activation::silu>(widen(g.at[k])) * widen(u.at[k]);
  } else if constexpr (what == Fp8Of::gated_slope) {
    const auto d = load_pack<kRun>(x + row * width + col);
    const auto g = load_pack<kRun>(pre + row * 2 * width + col), u = load_pack<kRun>(pre + (row * 2 + 1) * width + col);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const float by = widen(d.at[k]), gate = widen(g.at[k]), share = sigmoid_of(gate);
      v[0][k] = by * widen(u.at[k]) * (share + gate * share * sigmoid_of(-gate));
      v[1][k] = by * gate * share;
    }
  } else {
    const auto in = load_pack<kRun>(x + row * width + col);
    if constexpr (what == Fp8Of::slope) {
      const auto at = load_pack<kRun>(pre + row * width + col);
#pragma unroll
      for (int k = 0; k < kRun; ++k) v[0][k] = widen(in.at[k]) * slope_of<act>(widen(at.at[k]));
    } else {
#pragma unroll
      for (int k = 0; k < kRun; ++k) v[0][k] = activate<act>(widen(in.at[k]));
    }
  }
}

// A tile of 64×64: a thread turns sixteen neighbours of a row into sixteen bytes, and, for the codes by columns,
// collects sixteen of a column from shared memory. A gated slope's block has two tiles, one of either half.
template <Fp8Of what, Activation act, typename T>
__global__ void __launch_bounds__(kThreads) codes_kernel(Job job, const T* x, const T* pre) {
  constexpr int kParts = what == Fp8Of::gated_slope ? 2 : 1;
  __shared__ uint32_t tile[kParts][kSide][kSide / 4 + 1];  // a word more: columns in different banks
  __shared__ float sums[kParts][kWarps][kSide];
  __shared__ float meet[kWarps];
  const auto [down, right] = divide(blockIdx.x, job.across);
  const int64_t row0 = down * kSide, col0 = right * kSide, width = job.cols / kParts;
  const int r = threadIdx.x / 4, c = threadIdx.x % 4 * kRun, warp = threadIdx.x / 32;
  const float scale = job.state->scale;
  float highest = 0, value[kParts][kRun] = {};
  if (row0 + r < job.num_rows && col0 + c < width) {
    values_at<what, act, T, kParts>(value, x, pre, row0 + r, col0 + c, width);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Pack<uint32_t, kRun / 4> words{};  // four codes each
#pragma unroll
      for (int k = 0; k < kRun; k += 2) {
        const float u = value[part][k], v = value[part][k + 1];
        highest = fmaxf(highest, fmaxf(fabsf(u), fabsf(v)));
        const uint32_t pair = __nv_cvt_float2_to_fp8x2(make_float2(u * scale, v * scale), __NV_SATFINITE, job.kind);
        words.at[k / 4] |= pair << (k % 4 * 8);
      }
      if (job.rows)
        store_pack<kRun / 4>(reinterpret_cast<uint32_t*>(job.rows + (row0 + r) * job.cols + part * width + col0 + c),
                             words);
      if (job.columns) {
#pragma unroll
        for (int k = 0; k < kRun / 4; ++k) tile[part][r][c / 4 + k] = words.at[k];
      }
    }
  }
  highest = warp_max(highest);
  if (threadIdx.x % 32 == 0) meet[warp] = highest;
  if (job.sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int first = sum_rows_of_warp<kRun / 2, 16>(value[part]);
      sums[part][warp][c + first] = value[part][0];
      sums[part][warp][c + first + 1] = value[part][1];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, meet[w]);
    // Magnitudes order like their bits, and a maximum does not depend on the order it is taken in.
    atomicMax(reinterpret_cast<int*>(&job.state->amax), __float_as_int(highest));
  }
  if (const int part = threadIdx.x / kSide, col = threadIdx.x % kSide;
      job.sums && part < kParts && col0 + col < width) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[part][w][col];
    job.sums[down * job.cols + part * width + col0 + col] = total;
  }
  if (job.columns && col0 + r < width && row0 + c < job.num_rows) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Pack<uint32_t, kRun / 4> words{};
#pragma unroll
      for (int k = 0; k < kRun; ++k) words.at[k / 4] |= (tile[part][c + k][r / 4] >> (r % 4 * 8) & 0xff) << (k % 4 * 8);
      store_pack<kRun / 4>(
          reinterpret_cast<uint32_t*>(job.columns + (part * width + col0 + r) * job.num_rows + row0 + c), words);
    }
  }
}

template <Fp8Of what, Activation act, typename T>
void launch(const Job& job, const Fp8Source& from, const device::Stream& stream) {
  const int64_t blocks = job.across * ceil_div(job.num_rows, kSide);
  codes_kernel<what, act, T><<<static_cast<unsigned>(blocks), kThreads, 0, handle_of(stream)>>>(
      job, static_cast<const T*>(from.x), static_cast<const T*>(from.pre));
  ESP_CUDA_LAUNCHED();
}

template <Fp8Of what>
void launch_activation(const Job& job, const Fp8Source& from, const device::Stream& stream) {
  using T = __nv_bfloat16;
  switch (from.activation) {
    case Activation::none:
      return launch<what, Activation::none, T>(job, from, stream);
    case Activation::relu:
      return launch<what, Activation::relu, T>(job, from, stream);
    case Activation::gelu:
      return launch<what, Activation::gelu, T>(job, from, stream);
    case Activation::gelu_erf:
      return launch<what, Activation::gelu_erf, T>(job, from, stream);
    case Activation::silu:
      return launch<what, Activation::silu, T>(job, from, stream);
    case Activation::tanh:
      return launch<what, Activation::tanh, T>(job, from, stream);
  }
}

// All scales of a queue, those of either kind in a row so that one kernel advances them.
class KeptScales {
 public:
  static constexpr int64_t kMost = 16384;  // of a kind: three of each linear map
  KeptScales() {
    for (Fp8Scale*& row : rows_) ESP_CUDA_CHECK(cudaMalloc(&row, kMost * sizeof(Fp8Scale)));
  }
  ~KeptScales() {
    for (Fp8Scale* row : rows_) cudaFree(row);
  }
  KeptScales(const KeptScales&) = delete;
  KeptScales& operator=(const KeptScales&) = delete;

  KeptScale of(const void* owner, int role, Fp8 kind, const device::Stream& stream) {
    const auto k = static_cast<size_t>(kind);
    const auto [place, fresh] = at_[k].try_emplace({owner, role}, static_cast<int64_t>(at_[k].size()));
    ESP_CHECK(place->second < kMost, "more than {} tensors in 8 bits", kMost);
    Fp8Scale* scale = rows_[k] + place->second;
    if (fresh) {
      static const Fp8Scale kNew;
      ESP_CUDA_CHECK(cudaMemcpyAsync(scale, &kNew, sizeof kNew, cudaMemcpyHostToDevice, handle_of(stream)));
    }
    return {scale, fresh};
  }
  void save(float* numbers, std::span<const ScaleOwner> of, const device::Stream& stream) const {
    ESP_CUDA_CHECK(cudaStreamSynchronize(handle_of(stream)));
    std::fill_n(numbers, of.size() * kScaleNumbers, 0.0f);
    for (const ScaleOwner& one : of) {
      const auto k = static_cast<size_t>(one.kind);
      float* const to = std::exchange(numbers, numbers + kScaleNumbers);
      const auto place = at_[k].find({one.owner, one.role});
      if (place == at_[k].end()) continue;
      Fp8Scale scale;
      ESP_CUDA_CHECK(cudaMemcpy(&scale, rows_[k] + place->second, sizeof scale, cudaMemcpyDeviceToHost));
      to[0] = 1;
      to[1] = scale.inverse;
      to[2] = scale.scale;
      to[3] = scale.amax;
      to[4] = static_cast<float>(scale.next);
      std::copy_n(scale.history, Fp8Scale::kHistory, to + 5);
    }
  }
  void load(const float* numbers, std::span<const ScaleOwner> of, const device::Stream& stream) {
    for (const ScaleOwner& one : of) {
      const float* const from = std::exchange(numbers, numbers + kScaleNumbers);
      if (from[0] == 0) continue;
      Fp8Scale scale;
      scale.inverse = from[1];
      scale.scale = from[2];
      scale.amax = from[3];
      scale.next = static_cast<int32_t>(from[4]);
      std::copy_n(from + 5, Fp8Scale::kHistory, scale.history);
      ESP_CUDA_CHECK(cudaMemcpyAsync(this->of(one.owner, one.role, one.kind, stream).scale, &scale, sizeof scale,
                                     cudaMemcpyHostToDevice, handle_of(stream)));
    }
    ESP_CUDA_CHECK(cudaStreamSynchronize(handle_of(stream)));
  }
  void advance(const device::Stream& stream) {
    for (Fp8 kind : {Fp8::e4m3, Fp8::e5m2}) {
      const auto k = static_cast<size_t>(kind);
      update_fp8_scales(rows_[k], static_cast<int64_t>(at_[k].size()), kind, stream);
    }
  }

 private:
  Fp8Scale* rows_[2] = {};
  std::map<std::pair<const void*, int>, int64_t> at_[2];
};

}  // namespace

void make_codes(const Fp8Codes& to, const Fp8Source& from, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                DType dtype, const device::Stream& stream) {
  const int64_t width = from.what == Fp8Of::gated_slope ? cols / 2 : cols;
  ESP_CHECK(rows % 16 == 0 && width % 16 == 0 && aligned(to.rows, to.columns, from.x, from.pre),
            "fp8 of {}×{}: multiples of 16 are needed", rows, cols);
  if (rows * cols == 0) return;
  Job job{static_cast<uint8_t*>(to.rows),
          static_cast<uint8_t*>(to.columns),
          nullptr,
          scale,
          kind == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2,
          rows,
          cols,
          ceil_div(width, kSide)};
  const int64_t tiles_down = ceil_div(rows, kSide);
  if (to.column_sums)
    job.sums = static_cast<float*>(queue_of(stream).scratch(static_cast<size_t>(tiles_down * cols) * sizeof(float)));
  if (from.what == Fp8Of::itself) {
    with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
      if constexpr (sizeof(T) < 8)
        launch<Fp8Of::itself, Activation::none, T>(job, from, stream);
      else
        ESP_CHECK(false, "fp8 of f64");
    });
  } else {
    ESP_CHECK(dtype == DType::bf16, "8-bit codes of an activation in {}; it is for bf16", name_of(dtype));
    if (from.what == Fp8Of::activation) launch_activation<Fp8Of::activation>(job, from, stream);
    if (from.what == Fp8Of::slope) launch_activation<Fp8Of::slope>(job, from, stream);
    if (from.what == Fp8Of::gated) launch<Fp8Of::gated, Activation::silu, __nv_bfloat16>(job, from, stream);
    if (from.what == Fp8Of::gated_slope) launch<Fp8Of::gated_slope, Activation::silu, __nv_bfloat16>(job, from, stream);
  }
  if (to.column_sums) add_chunk_sums(to.column_sums, to.accumulate, job.sums, tiles_down, cols, dtype, stream);
}

void quantize_fp8(void* q, void* transposed, const void* x, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                  DType dtype, const device::Stream& stream) {
  make_codes({.rows = q, .columns = transposed}, {.x = x}, rows, cols, scale, kind, dtype, stream);
}

KeptScale kept_scale(const void* owner, int role, Fp8 kind, const device::Stream& stream) {
  return queue_of(stream).own<KeptScales>().of(owner, role, kind, stream);
}

void save_scales(float* numbers, std::span<const ScaleOwner> of, const device::Stream& stream) {
  queue_of(stream).own<KeptScales>().save(numbers, of, stream);
}

void load_scales(const float* numbers, std::span<const ScaleOwner> of, const device::Stream& stream) {
  queue_of(stream).own<KeptScales>().load(numbers, of, stream);
}

void advance_scales(const device::Stream& stream) {
  if (wants_fp8(stream)) queue_of(stream).own<KeptScales>().advance(stream);
}

bool wants_fp8(const device::Stream& stream) {
  return queue_of(stream).own<GemmPlans>().fp8;
}

}  // namespace esp::kernel::cuda
