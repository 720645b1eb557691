// Quantisation with vectors: one pass for a block's largest magnitude, one for its codes, both out of the first-level
// cache for the usual block. Four-bit codes are made and read as bytes, a run on the stack at a time.
#include "esp/kernel/quantize.h"
#include "esp/kernel/on_cuda.h"

#include <algorithm>
#include <bit>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/quantize.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

constexpr int64_t kRun = 1024;  // even: no byte of two codes is cut
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

// f(values, first, count) for runs of x, in float where it is wider.
template <typename T, class F>
HWY_INLINE void each_run(const T* x, int64_t count, F&& f) {
  for (int64_t first = 0; first < count; first += kRun) {
    const int64_t n = std::min(kRun, count - first);
    if constexpr (sizeof(T) == 8) {
      HWY_ALIGN float narrow[kRun];
      for (int64_t i = 0; i < n; ++i) narrow[i] = static_cast<float>(x[first + i]);
      f(static_cast<const float*>(narrow), first, n);
    } else {
      f(x + first, first, n);
    }
  }
}

// As bits, magnitudes order like numbers, and what is not finite lies above.
template <typename T>
HWY_INLINE int32_t largest_bits(const T* x, int64_t count) {
  const Bits d;
  auto largest = hn::Zero(d);
  each_run(x, count, [&](auto* run, int64_t, int64_t n) HWY_ATTR {
    using E = std::remove_cv_t<std::remove_pointer_t<decltype(run)>>;
    each_vector<E>(n, [&](auto lanes, int64_t i) HWY_ATTR {
      largest = hn::Max(largest, hn::And(hn::BitCast(d, lanes.load(run + i)), hn::Set(d, 0x7fffffff)));
    });
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

template <typename E>
HWY_INLINE void encode_run(int8_t* codes, const E* x, int64_t count, float scale, float top) {
  const Tag<float> d;
  const auto unit = hn::Set(d, scale), most = hn::Set(d, top), least = hn::Set(d, -top);
  each_vector<E>(count, [=](auto lanes, int64_t i) HWY_ATTR {
    const auto steps = hn::Min(hn::Max(hn::Div(lanes.load(x + i), unit), least), most);
    store_codes(lanes, hn::DemoteTo(Codes(), hn::NearestInt(steps)), codes + i);
  });
}

// Two codes to a byte; a last odd one has 0 beside it.
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

// `codes` has room for an even count.
HWY_INLINE void unpack(int8_t* codes, const uint8_t* from, int64_t count) {
  const hn::ScalableTag<uint16_t> d;
  const hn::Rebind<uint8_t, decltype(d)> narrow;
  const int64_t pairs = (count + 1) / 2, lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    const auto both = hn::PromoteTo(d, hn::LoadU(narrow, from + i));
    const auto halves = hn::And(hn::Or(both, hn::ShiftLeft<4>(both)), hn::Set(d, uint16_t{0x0f0f}));
    const auto signs = hn::And(halves, hn::Set(d, uint16_t{0x0808}));  // times 0x1e: the four bits above each
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
  each_run(x, count, [&](auto* run, int64_t first, int64_t n) HWY_ATTR {
    if (bits == 8) {
      encode_run(reinterpret_cast<int8_t*>(codes) + first, run, n, scale, top);
    } else {
      HWY_ALIGN int8_t wide[kRun + 1];
      encode_run(wide, run, n, scale, top);
      pack(codes + first / 2, wide, n);
    }
  });
}

template <bool kAdd, typename T>
HWY_INLINE void decode_run(T* y, const int8_t* codes, int64_t count, float scale) {
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
  HWY_ALIGN int8_t wide[kRun];
  for (int64_t first = 0; first < count; first += kRun) {
    const int64_t n = std::min(kRun, count - first);
    const auto* run = reinterpret_cast<const int8_t*>(codes) + first;
    if (bits == 4) {
      unpack(wide, codes + first / 2, n);
      run = wide;
    }
    if constexpr (sizeof(T) == 8) {
      HWY_ALIGN float values[kRun];
      decode_run<false>(values, run, n, scale);
      std::copy_n(values, n, y + first);
    } else {
      decode_run<kAdd>(y + first, run, n, scale);
    }
  }
}

void encode_piece(uint8_t* scale, uint8_t* codes, const void* x, int64_t count, DType dtype, int bits) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    encode_block(scale, codes, static_cast<const T*>(x), count, bits);
  });
}

void decode_piece(void* y, const uint8_t* scale, const uint8_t* codes, int64_t count, DType dtype, int bits) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    decode_block<false>(static_cast<T*>(y), scale, codes, count, bits);
  });
}

void decode_add_piece(float* sums, const uint8_t* scale, const uint8_t* codes, int64_t count, int bits) {
  decode_block<true>(sums, scale, codes, count, bits);
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(encode_piece);
HWY_EXPORT(decode_piece);
HWY_EXPORT(decode_add_piece);

namespace {

int64_t code_bytes(int64_t count, int bits) {
  return bits == 8 ? count : (count + 1) / 2;
}

// f(first element, elements, where its scale is, where its codes are) for every block.
template <typename F>
void each_block(int64_t count, const BlockCode& code, const device::Stream& stream, F f) {
  ESP_CHECK(code.bits == 8 || code.bits == 4, "{} bits", code.bits);
  ESP_CHECK(code.block >= 1, "blocks of {}", code.block);
  const int64_t num_blocks = (count + code.block - 1) / code.block;
  device::parallel_for(stream, num_blocks, row_grain(code.block), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      f(b * code.block, std::min(code.block, count - b * code.block), 4 * b,
        4 * num_blocks + b * code_bytes(code.block, code.bits));
  });
}

}  // namespace

size_t quantized_bytes(int64_t count, const BlockCode& code) {
  const int64_t whole = count / code.block, rest = count % code.block;
  return static_cast<size_t>(4 * (whole + (rest > 0)) + whole * code_bytes(code.block, code.bits) +
                             code_bytes(rest, code.bits));
}

void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockCode& code,
              const device::Stream& stream) {
  if (on_cuda(stream)) return cuda::quantize(encoded, x, count, dtype, code, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(encode_piece);
  auto* bytes = static_cast<uint8_t*>(encoded);
  each_block(count, code, stream, [&](int64_t first, int64_t n, int64_t scale, int64_t codes) {
    piece(bytes + scale, bytes + codes, at(x, first, dtype), n, dtype, code.bits);
  });
}

void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockCode& code,
                const device::Stream& stream) {
  if (on_cuda(stream)) return cuda::dequantize(y, encoded, count, dtype, code, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(decode_piece);
  const auto* bytes = static_cast<const uint8_t*>(encoded);
  each_block(count, code, stream, [&](int64_t first, int64_t n, int64_t scale, int64_t codes) {
    piece(at(y, first, dtype), bytes + scale, bytes + codes, n, dtype, code.bits);
  });
}

void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockCode& code,
                    const device::Stream& stream) {
  if (on_cuda(stream)) return cuda::dequantize_add(sums, encoded, count, code, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(decode_add_piece);
  const auto* bytes = static_cast<const uint8_t*>(encoded);
  each_block(count, code, stream, [&](int64_t first, int64_t n, int64_t scale, int64_t codes) {
    piece(sums + first, bytes + scale, bytes + codes, n, code.bits);
  });
}

}  // namespace esp::kernel
#endif
