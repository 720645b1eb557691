// Blockwise quantisation, bit-identical to the CPU. One thread block processes one block of values.
//
// Encoded buffers may have any address. Scales and encoded values are therefore accessed byte by byte; the cache
// combines neighbouring bytes.
#include "esp/kernel/quantize.h"

#include "esp/kernel/cuda/elements.cuh"

namespace esp::kernel::cuda {
namespace {

struct QuantizedArgs {
  uint8_t* encoded;
  int64_t count, block, block_bytes, num_blocks;
  int bits;
};

QuantizedArgs make_args(void* encoded, int64_t count, const BlockFormat& format) {
  ESP_CHECK((format.bits == 8 || format.bits == 4) && format.block >= 1,
            "quantize: got {} bits, block size {}; expected 4 or 8 bits, block size >= 1", format.bits, format.block);
  return {static_cast<uint8_t*>(encoded),
          count,
          format.block,
          format.bits == 8 ? format.block : (format.block + 1) / 2,
          ceil_div(count, format.block),
          format.bits};
}

__device__ __forceinline__ float as_float(double x) {
  return static_cast<float>(x);
}
__device__ __forceinline__ float as_float(float x) {
  return x;
}

__device__ __forceinline__ int code_of(float x, float scale, float top) {
  return scale > 0 ? static_cast<int>(fminf(fmaxf(rintf(__fdiv_rn(x, scale)), -top), top)) : 0;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) encode_kernel(QuantizedArgs args, const T* x) {
  __shared__ uint32_t partials[kThreads / 32];
  const int64_t begin = int64_t{blockIdx.x} * args.block, n = min(args.block, args.count - begin);
  const T* from = x + begin;
  // A bit pattern. The bit patterns of magnitudes have the same order as the numbers; non-finite values are the
  // largest.
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads)
    largest = max(largest, __float_as_uint(as_float(widen(from[i]))) & 0x7fffffffu);
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = largest;
  __syncthreads();
  for (uint32_t other : partials) largest = max(largest, other);
  const float top = args.bits == 8 ? 127.0f : 7.0f;
  const float scale = largest < 0x7f800000u ? __fdiv_rn(__uint_as_float(largest), top) : __uint_as_float(0x7fc00000u);
  if (threadIdx.x < 4) args.encoded[blockIdx.x * 4 + threadIdx.x] = __float_as_uint(scale) >> (8 * threadIdx.x) & 255;
  uint8_t* codes = args.encoded + 4 * args.num_blocks + blockIdx.x * args.block_bytes;
  if (args.bits == 8) {
    for (int64_t i = threadIdx.x; i < n; i += kThreads)
      codes[i] = static_cast<uint8_t>(code_of(as_float(widen(from[i])), scale, top));
  } else {
    for (int64_t i = threadIdx.x; 2 * i < n; i += kThreads) {
      const int low = code_of(as_float(widen(from[2 * i])), scale, top);
      const int high = 2 * i + 1 < n ? code_of(as_float(widen(from[2 * i + 1])), scale, top) : 0;
      codes[i] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
    }
  }
}

template <typename T, bool kAdd>
__global__ void __launch_bounds__(kThreads) decode_kernel(T* y, QuantizedArgs args) {
  const int64_t begin = int64_t{blockIdx.x} * args.block, n = min(args.block, args.count - begin);
  uint32_t bits = 0;
  for (int k = 0; k < 4; ++k) bits |= uint32_t{args.encoded[blockIdx.x * 4 + k]} << (8 * k);
  const float scale = __uint_as_float(bits);
  const uint8_t* codes = args.encoded + 4 * args.num_blocks + blockIdx.x * args.block_bytes;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const int quantized =
        args.bits == 8 ? static_cast<int8_t>(codes[i]) : (((codes[i / 2] >> (i % 2 * 4)) & 15) ^ 8) - 8;
    const float value = __fmul_rn(static_cast<float>(quantized), scale);
    if constexpr (kAdd) {
      y[begin + i] = __fadd_rn(y[begin + i], value);
    } else {
      y[begin + i] = narrow<T>(static_cast<Accumulator<T>>(value));
    }
  }
}

}  // namespace

void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockFormat& format,
              const device::Stream& stream) {
  if (count == 0) return;
  const QuantizedArgs args = make_args(encoded, count, format);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    encode_kernel<<<static_cast<unsigned>(args.num_blocks), kThreads, 0, handle_of(stream)>>>(args,
                                                                                              static_cast<const T*>(x));
    ESP_CUDA_LAUNCHED();
  });
}

void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockFormat& format,
                const device::Stream& stream) {
  if (count == 0) return;
  const QuantizedArgs args = make_args(const_cast<void*>(encoded), count, format);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    decode_kernel<T, false>
        <<<static_cast<unsigned>(args.num_blocks), kThreads, 0, handle_of(stream)>>>(static_cast<T*>(y), args);
    ESP_CUDA_LAUNCHED();
  });
}

void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockFormat& format,
                    const device::Stream& stream) {
  if (count == 0) return;
  const QuantizedArgs args = make_args(const_cast<void*>(encoded), count, format);
  decode_kernel<float, true><<<static_cast<unsigned>(args.num_blocks), kThreads, 0, handle_of(stream)>>>(sums, args);
  ESP_CUDA_LAUNCHED();
}

}  // namespace esp::kernel::cuda
