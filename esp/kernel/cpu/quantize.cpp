// Vectorised quantisation. One pass finds the largest magnitude of a block, and a second pass encodes the block. Blocks
// of the usual size stay in L1 between the passes. Encoding and decoding use one byte per 4-bit value, in a buffer on
// the stack.
#include "esp/kernel/quantize.h"
#include "esp/kernel/cuda_dispatch.h"

#include <algorithm>
#include <bit>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/quantize.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

constexpr int64_t kChunk = 1024;  // even, so that two encoded values of one byte are in the same chunk
using Bits = hn::RebindToSigned<Tag<float>>;
using Codes = hn::Rebind<int8_t, Tag<float>>;

HWY_INLINE void store_codes(FullVector, hn::Vec<Codes> v, int8_t* to) {
  hn::StoreU(v, Codes(), to);
}
HWY_INLINE void store_codes(PartialVector part, hn::Vec<Codes> v, int8_t* to) {
  int8_t padded[hn::MaxLanes(Tag<float>())];
  hn::StoreU(v, Codes(), padded);
  std::memcpy(to, padded, part.count);
}
HWY_INLINE hn::Vec<Codes> load_codes(FullVector, const int8_t* from) {
  return hn::LoadU(Codes(), from);
}
HWY_INLINE hn::Vec<Codes> load_codes(PartialVector part, const int8_t* from) {
  int8_t padded[hn::MaxLanes(Tag<float>())] = {};
  std::memcpy(padded, from, part.count);
  return hn::LoadU(Codes(), padded);
}

// Calls f(values, first, count) for each chunk of x. `values` has the type of x, or float if x is f64.
template <typename T, class F>
HWY_INLINE void each_chunk(const T* x, int64_t count, F&& f) {
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(kChunk, count - first);
    if constexpr (sizeof(T) == 8) {
      HWY_ALIGN float narrow[kChunk];
      for (int64_t i = 0; i < n; ++i) narrow[i] = static_cast<float>(x[first + i]);
      f(static_cast<const float*>(narrow), first, n);
    } else {
      f(x + first, first, n);
    }
  }
}

// Returns the largest magnitude as a bit pattern. The bit patterns of magnitudes have the same order as the numbers;
// non-finite values are the largest.
template <typename T>
HWY_INLINE int32_t largest_bits(const T* x, int64_t count) {
  const Bits d;
  auto largest = hn::Zero(d);
  each_chunk(x, count, [&](auto* chunk, int64_t, int64_t n) HWY_ATTR {
    using E = std::remove_cv_t<std::remove_pointer_t<decltype(chunk)>>;
    each_vector<E>(n, [&](auto lanes, int64_t i) HWY_ATTR {
      largest = hn::Max(largest, hn::And(hn::BitCast(d, lanes.load(chunk + i)), hn::Set(d, 0x7fffffff)));
    });
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

template <typename E>
HWY_INLINE void encode_chunk(int8_t* codes, const E* x, int64_t count, float scale, float top) {
  const Tag<float> d;
  const auto unit = hn::Set(d, scale), most = hn::Set(d, top), least = hn::Set(d, -top);
  each_vector<E>(count, [=](auto lanes, int64_t i) HWY_ATTR {
    const auto steps = hn::Min(hn::Max(hn::Div(lanes.load(x + i), unit), least), most);
    store_codes(lanes, hn::DemoteTo(Codes(), hn::NearestInt(steps)), codes + i);
  });
}

// Packs two encoded values per byte. If the count is odd, the last byte is padded with 0.
HWY_INLINE void pack(uint8_t* to, int8_t* codes, int64_t count) {
  if (count % 2) codes[count] = 0;
  const hn::ScalableTag<int16_t> d;
  const hn::Rebind<uint8_t, decltype(d)> narrow;
  const int64_t pairs = (count + 1) / 2, lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    const auto pair = hn::LoadU(d, reinterpret_cast<const int16_t*>(codes) + i);
    const auto low = hn::And(pair, hn::Set(d, 0x0f)), high = hn::And(hn::ShiftRight<4>(pair), hn::Set(d, 0xf0));
    hn::StoreU(hn::DemoteTo(narrow, hn::Or(low, high)), narrow, to + i);
  }
  for (; i < pairs; ++i) to[i] = static_cast<uint8_t>((codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4);
}

// Unpacks two encoded values per byte. `codes` needs room for an even number of values.
HWY_INLINE void unpack(int8_t* codes, const uint8_t* from, int64_t count) {
  const hn::ScalableTag<uint16_t> d;
  const hn::Rebind<uint8_t, decltype(d)> narrow;
  const int64_t pairs = (count + 1) / 2, lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    const auto both = hn::PromoteTo(d, hn::LoadU(narrow, from + i));
    const auto halves = hn::And(hn::Or(both, hn::ShiftLeft<4>(both)), hn::Set(d, uint16_t{0x0f0f}));
    // Sign extension: multiplying the sign bit by 0x1e sets the four bits above it.
    const auto signs = hn::And(halves, hn::Set(d, uint16_t{0x0808}));
    hn::StoreU(hn::Or(halves, hn::Mul(signs, hn::Set(d, uint16_t{0x1e}))), d, reinterpret_cast<uint16_t*>(codes) + i);
  }
  for (; i < pairs; ++i) {
    codes[2 * i] = static_cast<int8_t>(((from[i] & 15) ^ 8) - 8);
    codes[2 * i + 1] = static_cast<int8_t>(((from[i] >> 4) ^ 8) - 8);
  }
}

template <typename T>
void encode_block(uint8_t* scale_at, uint8_t* codes, const T* x, int64_t count, int bits) {
  const float top = bits == 8 ? 127.0f : 7.0f;
  const int32_t largest = largest_bits(x, count);
  const float scale =
      largest < 0x7f800000 ? std::bit_cast<float>(largest) / top : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(scale_at, &scale, sizeof scale);
  if (!(scale > 0)) {
    std::memset(codes, 0, static_cast<size_t>(bits == 8 ? count : (count + 1) / 2));
    return;
  }
  each_chunk(x, count, [&](auto* chunk, int64_t first, int64_t n) HWY_ATTR {
    if (bits == 8) {
      encode_chunk(reinterpret_cast<int8_t*>(codes) + first, chunk, n, scale, top);
    } else {
      HWY_ALIGN int8_t wide[kChunk + 1];
      encode_chunk(wide, chunk, n, scale, top);
      pack(codes + first / 2, wide, n);
    }
  });
}

template <bool kAdd, typename T>
HWY_INLINE void decode_chunk(T* y, const int8_t* codes, int64_t count, float scale) {
  const Tag<float> d;
  const auto unit = hn::Set(d, scale);
  each_vector<T>(count, [=](auto lanes, int64_t i) HWY_ATTR {
    const auto steps = hn::ConvertTo(d, hn::PromoteTo(Bits(), load_codes(lanes, codes + i)));
    auto v = hn::Mul(steps, unit);
    if constexpr (kAdd) v = hn::Add(lanes.load(y + i), v);
    lanes.store(v, y + i);
  });
}

template <bool kAdd, typename T>
void decode_block(T* y, const uint8_t* scale_at, const uint8_t* codes, int64_t count, int bits) {
  float scale;
  std::memcpy(&scale, scale_at, sizeof scale);
  HWY_ALIGN int8_t wide[kChunk];
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(kChunk, count - first);
    const auto* chunk = reinterpret_cast<const int8_t*>(codes) + first;
    if (bits == 4) {
      unpack(wide, codes + first / 2, n);
      chunk = wide;
    }
    if constexpr (sizeof(T) == 8) {
      HWY_ALIGN float values[kChunk];
      decode_chunk<false>(values, chunk, n, scale);
      std::copy_n(values, n, y + first);
    } else {
      decode_chunk<kAdd>(y + first, chunk, n, scale);
    }
  }
}

void encode_range(uint8_t* scale, uint8_t* codes, const void* x, int64_t count, DType dtype, int bits) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    encode_block(scale, codes, static_cast<const T*>(x), count, bits);
  });
}

void decode_range(void* y, const uint8_t* scale, const uint8_t* codes, int64_t count, DType dtype, int bits) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    decode_block<false>(static_cast<T*>(y), scale, codes, count, bits);
  });
}

void decode_add_range(float* sums, const uint8_t* scale, const uint8_t* codes, int64_t count, int bits) {
  decode_block<true>(sums, scale, codes, count, bits);
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(encode_range);
HWY_EXPORT(decode_range);
HWY_EXPORT(decode_add_range);

namespace {

int64_t code_bytes(int64_t count, int bits) {
  return bits == 8 ? count : (count + 1) / 2;
}

// Calls f(first element, number of elements, offset of the scale, offset of the encoded values) for every block.
template <typename F>
void each_block(int64_t count, const BlockFormat& format, const device::Stream& stream, F f) {
  ESP_CHECK(format.bits == 8 || format.bits == 4, "quantize: got {} bits; expected 4 or 8", format.bits);
  ESP_CHECK(format.block >= 1, "quantize: got block size {}; must be >= 1", format.block);
  const int64_t num_blocks = (count + format.block - 1) / format.block;
  device::parallel_for(stream, num_blocks, row_grain(format.block), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      f(b * format.block, std::min(format.block, count - b * format.block), 4 * b,
        4 * num_blocks + b * code_bytes(format.block, format.bits));
  });
}

}  // namespace

size_t quantized_bytes(int64_t count, const BlockFormat& format) {
  const int64_t whole = count / format.block, rest = count % format.block;
  return static_cast<size_t>(4 * (whole + (rest > 0)) + whole * code_bytes(format.block, format.bits) +
                             code_bytes(rest, format.bits));
}

void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockFormat& format,
              const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::quantize(encoded, x, count, dtype, format, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(encode_range);
  auto* bytes = static_cast<uint8_t*>(encoded);
  each_block(count, format, stream, [&](int64_t first, int64_t n, int64_t scale, int64_t codes) {
    piece(bytes + scale, bytes + codes, at(x, first, dtype), n, dtype, format.bits);
  });
}

void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockFormat& format,
                const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::dequantize(y, encoded, count, dtype, format, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(decode_range);
  const auto* bytes = static_cast<const uint8_t*>(encoded);
  each_block(count, format, stream, [&](int64_t first, int64_t n, int64_t scale, int64_t codes) {
    piece(at(y, first, dtype), bytes + scale, bytes + codes, n, dtype, format.bits);
  });
}

void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockFormat& format,
                    const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::dequantize_add(sums, encoded, count, format, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(decode_add_range);
  const auto* bytes = static_cast<const uint8_t*>(encoded);
  each_block(count, format, stream, [&](int64_t first, int64_t n, int64_t scale, int64_t codes) {
    piece(sums + first, bytes + scale, bytes + codes, n, format.bits);
  });
}

}  // namespace esp::kernel
#endif
