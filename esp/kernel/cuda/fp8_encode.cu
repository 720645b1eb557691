#include "esp/kernel/cuda/fp8_encode.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <map>
#include <utility>

#include "esp/kernel/cuda/activation.cuh"
#include "esp/kernel/cuda/column_sums.h"
#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/gemm_plan.h"
#include "esp/kernel/cuda/row_reduce.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kSide = 64;       // rows and columns of a tile
constexpr int kPerThread = 16;  // neighbouring elements that a thread encodes
constexpr int kWarps = kThreads / 32;

struct EncodeArgs {
  uint8_t *rows, *columns;
  float* sums;  // column sums per row of tiles: [rows / kSide, rounded up; cols]
  Fp8Scale* state;
  __nv_fp8_interpretation_t kind;
  int64_t num_rows, cols, across;
};

// Sums each of 16 columns over the eight rows of a warp (the lanes that differ in bits 2 to 4). Each of three steps
// halves the number of columns per lane, so a lane ends with the sums of two columns. Returns the first of these
// columns. The function is recursive, so that every index is a compile-time constant and the array stays in registers.
template <int kHalf, int kBit>
__device__ __forceinline__ int sum_warp_rows(float (&v)[kPerThread]) {
  const bool upper = threadIdx.x & kBit;
#pragma unroll
  for (int k = 0; k < kHalf; ++k) {
    const float gone = upper ? v[k] : v[k + kHalf], kept = upper ? v[k + kHalf] : v[k];
    v[k] = kept + __shfl_xor_sync(0xffffffffu, gone, kBit);
  }
  const int first = upper ? kHalf : 0;
  if constexpr (kHalf > 2)
    return first + sum_warp_rows<kHalf / 2, kBit / 2>(v);
  else
    return first;
}

// Computes 16 neighbouring values. For swiglu_gradient, v[0] receives the gradient of the gate and v[1] the gradient of
// up.
template <Fp8Function function, Activation act, typename T, int kParts>
__device__ __forceinline__ void load_values(float (&v)[kParts][kPerThread], const T* x, const T* pre, int64_t row,
                                            int64_t col, int64_t width) {
  if constexpr (function == Fp8Function::swiglu) {
    const auto g = load_pack<kPerThread>(x + row * 2 * width + col),
               u = load_pack<kPerThread>(x + (row * 2 + 1) * width + col);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) v[0][k] = activate<Activation::silu>(widen(g.at[k])) * widen(u.at[k]);
  } else if constexpr (function == Fp8Function::swiglu_gradient) {
    const auto d = load_pack<kPerThread>(x + row * width + col);
    const auto g = load_pack<kPerThread>(pre + row * 2 * width + col),
               u = load_pack<kPerThread>(pre + (row * 2 + 1) * width + col);
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const float by = widen(d.at[k]), gate = widen(g.at[k]), share = sigmoid_of(gate);
      v[0][k] = by * widen(u.at[k]) * (share + gate * share * sigmoid_of(-gate));
      v[1][k] = by * gate * share;
    }
  } else {
    const auto in = load_pack<kPerThread>(x + row * width + col);
    if constexpr (function == Fp8Function::activation_gradient) {
      const auto at = load_pack<kPerThread>(pre + row * width + col);
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) v[0][k] = widen(in.at[k]) * derivative_of<act>(widen(at.at[k]));
    } else {
#pragma unroll
      for (int k = 0; k < kPerThread; ++k) v[0][k] = activate<act>(widen(in.at[k]));
    }
  }
}

// Encodes a tile of 64×64. Each thread converts 16 neighbours of a row to 16 bytes. For the column layout it also
// collects 16 elements of a column from shared memory. For swiglu_gradient a block has two tiles: one for the gate and
// one for up.
template <Fp8Function function, Activation act, typename T>
__global__ void __launch_bounds__(kThreads) encode_kernel(EncodeArgs job, const T* x, const T* pre) {
  constexpr int kParts = function == Fp8Function::swiglu_gradient ? 2 : 1;
  // rows are padded by one word, so that the words of a column are in different shared-memory banks
  __shared__ uint32_t tile[kParts][kSide][kSide / 4 + 1];
  __shared__ float sums[kParts][kWarps][kSide];
  __shared__ float partials[kWarps];
  const auto [down, right] = divide(blockIdx.x, job.across);
  const int64_t row0 = down * kSide, col0 = right * kSide, width = job.cols / kParts;
  const int r = threadIdx.x / 4, c = threadIdx.x % 4 * kPerThread, warp = threadIdx.x / 32;
  const float scale = job.state->scale;
  float highest = 0, value[kParts][kPerThread] = {};
  if (row0 + r < job.num_rows && col0 + c < width) {
    load_values<function, act, T, kParts>(value, x, pre, row0 + r, col0 + c, width);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Pack<uint32_t, kPerThread / 4> words{};  // each word has four encoded values
#pragma unroll
      for (int k = 0; k < kPerThread; k += 2) {
        const float u = value[part][k], v = value[part][k + 1];
        highest = fmaxf(highest, fmaxf(fabsf(u), fabsf(v)));
        const uint32_t pair = __nv_cvt_float2_to_fp8x2(make_float2(u * scale, v * scale), __NV_SATFINITE, job.kind);
        words.at[k / 4] |= pair << (k % 4 * 8);
      }
      if (job.rows)
        store_pack<kPerThread / 4>(
            reinterpret_cast<uint32_t*>(job.rows + (row0 + r) * job.cols + part * width + col0 + c), words);
      if (job.columns) {
#pragma unroll
        for (int k = 0; k < kPerThread / 4; ++k) tile[part][r][c / 4 + k] = words.at[k];
      }
    }
  }
  highest = warp_max(highest);
  if (threadIdx.x % 32 == 0) partials[warp] = highest;
  if (job.sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int first = sum_warp_rows<kPerThread / 2, 16>(value[part]);
      sums[part][warp][c + first] = value[part][0];
      sums[part][warp][c + first + 1] = value[part][1];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, partials[w]);
    // atomicMax compares bit patterns, which have the same order as the numbers because the numbers are not negative.
    // The result does not depend on the order of the blocks.
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
      Pack<uint32_t, kPerThread / 4> words{};
#pragma unroll
      for (int k = 0; k < kPerThread; ++k)
        words.at[k / 4] |= (tile[part][c + k][r / 4] >> (r % 4 * 8) & 0xff) << (k % 4 * 8);
      store_pack<kPerThread / 4>(
          reinterpret_cast<uint32_t*>(job.columns + (part * width + col0 + r) * job.num_rows + row0 + c), words);
    }
  }
}

template <Fp8Function function, Activation act, typename T>
void launch(const EncodeArgs& job, const Fp8Source& from, const device::Stream& stream) {
  const int64_t blocks = job.across * ceil_div(job.num_rows, kSide);
  encode_kernel<function, act, T><<<static_cast<unsigned>(blocks), kThreads, 0, handle_of(stream)>>>(
      job, static_cast<const T*>(from.x), static_cast<const T*>(from.pre));
  ESP_CUDA_LAUNCHED();
}

template <Fp8Function function>
void launch_activation(const EncodeArgs& job, const Fp8Source& from, const device::Stream& stream) {
  using T = __nv_bfloat16;
  switch (from.activation) {
    case Activation::none:
      return launch<function, Activation::none, T>(job, from, stream);
    case Activation::relu:
      return launch<function, Activation::relu, T>(job, from, stream);
    case Activation::gelu:
      return launch<function, Activation::gelu, T>(job, from, stream);
    case Activation::gelu_erf:
      return launch<function, Activation::gelu_erf, T>(job, from, stream);
    case Activation::silu:
      return launch<function, Activation::silu, T>(job, from, stream);
    case Activation::tanh:
      return launch<function, Activation::tanh, T>(job, from, stream);
  }
}

// All fp8 scales of a queue. Scales of one fp8 kind are contiguous in memory, so that one kernel updates them.
class ScaleTable {
 public:
  // maximum number of scales per fp8 kind; a linear layer has three scales
  static constexpr int64_t kMaxScales = 16384;
  ScaleTable() {
    for (Fp8Scale*& row : rows_) ESP_CUDA_CHECK(cudaMalloc(&row, kMaxScales * sizeof(Fp8Scale)));
  }
  ~ScaleTable() {
    for (Fp8Scale* row : rows_) cudaFree(row);
  }
  ScaleTable(const ScaleTable&) = delete;
  ScaleTable& operator=(const ScaleTable&) = delete;

  ScaleHandle of(const void* owner, int role, Fp8 kind, const device::Stream& stream) {
    const auto k = static_cast<size_t>(kind);
    const auto [place, fresh] = at_[k].try_emplace({owner, role}, static_cast<int64_t>(at_[k].size()));
    ESP_CHECK(place->second < kMaxScales, "fp8 scales: got {} scales of one fp8 type; expected at most {}",
              place->second + 1, kMaxScales);
    Fp8Scale* scale = rows_[k] + place->second;
    if (fresh) {
      static const Fp8Scale kNew;
      ESP_CUDA_CHECK(cudaMemcpyAsync(scale, &kNew, sizeof kNew, cudaMemcpyHostToDevice, handle_of(stream)));
    }
    return {scale, fresh};
  }
  void save(float* numbers, std::span<const ScaleKey> of, const device::Stream& stream) const {
    ESP_CUDA_CHECK(cudaStreamSynchronize(handle_of(stream)));
    std::fill_n(numbers, of.size() * kScaleStateSize, 0.0f);
    for (const ScaleKey& one : of) {
      const auto k = static_cast<size_t>(one.kind);
      float* const to = std::exchange(numbers, numbers + kScaleStateSize);
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
  void load(const float* numbers, std::span<const ScaleKey> of, const device::Stream& stream) {
    for (const ScaleKey& one : of) {
      const float* const from = std::exchange(numbers, numbers + kScaleStateSize);
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
  void update(const device::Stream& stream) {
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

void encode_fp8(const Fp8Outputs& to, const Fp8Source& from, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                DType dtype, const device::Stream& stream) {
  const int64_t width = from.function == Fp8Function::swiglu_gradient ? cols / 2 : cols;
  ESP_CHECK(rows % 16 == 0 && width % 16 == 0 && aligned(to.rows, to.columns, from.x, from.pre),
            "fp8 encoding: got size {}×{}; expected multiples of 16 and 16-byte aligned addresses", rows, cols);
  if (rows * cols == 0) return;
  EncodeArgs job{static_cast<uint8_t*>(to.rows),
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
  if (from.function == Fp8Function::identity) {
    with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
      if constexpr (sizeof(T) < 8)
        launch<Fp8Function::identity, Activation::none, T>(job, from, stream);
      else
        ESP_CHECK(false, "fp8 encoding: got dtype f64; expected bf16, f16 or f32");
    });
  } else {
    ESP_CHECK(dtype == DType::bf16, "fp8 encoding of an activation: got dtype {}; expected bf16", name_of(dtype));
    if (from.function == Fp8Function::activation) launch_activation<Fp8Function::activation>(job, from, stream);
    if (from.function == Fp8Function::activation_gradient)
      launch_activation<Fp8Function::activation_gradient>(job, from, stream);
    if (from.function == Fp8Function::swiglu)
      launch<Fp8Function::swiglu, Activation::silu, __nv_bfloat16>(job, from, stream);
    if (from.function == Fp8Function::swiglu_gradient)
      launch<Fp8Function::swiglu_gradient, Activation::silu, __nv_bfloat16>(job, from, stream);
  }
  if (to.column_sums) add_chunk_sums(to.column_sums, to.accumulate, job.sums, tiles_down, cols, dtype, stream);
}

void quantize_fp8(void* q, void* transposed, const void* x, int64_t rows, int64_t cols, Fp8Scale* scale, Fp8 kind,
                  DType dtype, const device::Stream& stream) {
  encode_fp8({.rows = q, .columns = transposed}, {.x = x}, rows, cols, scale, kind, dtype, stream);
}

ScaleHandle find_scale(const void* owner, int role, Fp8 kind, const device::Stream& stream) {
  return queue_of(stream).get_or_create<ScaleTable>().of(owner, role, kind, stream);
}

void save_scales(float* numbers, std::span<const ScaleKey> of, const device::Stream& stream) {
  queue_of(stream).get_or_create<ScaleTable>().save(numbers, of, stream);
}

void load_scales(const float* numbers, std::span<const ScaleKey> of, const device::Stream& stream) {
  queue_of(stream).get_or_create<ScaleTable>().load(numbers, of, stream);
}

void update_scales(const device::Stream& stream) {
  if (uses_fp8(stream)) queue_of(stream).get_or_create<ScaleTable>().update(stream);
}

bool uses_fp8(const device::Stream& stream) {
  return queue_of(stream).get_or_create<GemmPlanCache>().fp8;
}

}  // namespace esp::kernel::cuda
