// Stochastic rounding in chunks of kChunk values: the random numbers, encoded integers and packed bits of a chunk stay
// in the L1 cache.
#include "esp/kernel/stochastic_rounding.h"
#include "esp/kernel/cuda_dispatch.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/stochastic_rounding.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/bit_pack.h"
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/elementwise.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

using F32 = Tag<float>;
using I32 = hn::RebindToSigned<F32>;

// Rounds to floor(steps), or to floor(steps) + 1 if u is below the fractional part of steps.
HWY_INLINE hn::Vec<I32> round_stochastic(Vec<float> steps, Vec<float> u) {
  const F32 d;
  const auto down = hn::Floor(steps);
  const auto up = hn::Lt(u, hn::Sub(steps, down));
  return hn::ConvertTo(I32(), hn::Add(down, hn::IfThenElseZero(up, hn::Set(d, 1.0f))));
}

// Returns the largest magnitude as a bit pattern. The bit patterns of magnitudes have the same order as the numbers;
// non-finite values are the largest.
int32_t largest_bits(const float* x, int64_t count) {
  const I32 di;
  auto largest = hn::Zero(di);
  each_vector<float>(count, [&](auto lanes, int64_t i) HWY_ATTR {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, lanes.load(x + i)), hn::Set(di, 0x7fffffff)));
  });
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

void block_encode_chunk(int8_t* codes, const float* x, const float* u, int64_t count, float scale, float top) {
  const F32 d;
  const int64_t lanes = lanes_of<float>();
  const auto unit = hn::Set(d, scale), most = hn::Set(d, top), least = hn::Set(d, -top);
  const hn::Rebind<int8_t, F32> narrow;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto steps = hn::Min(hn::Max(hn::Div(hn::LoadU(d, x + i), unit), least), most);
    hn::StoreU(hn::DemoteTo(narrow, round_stochastic(steps, hn::LoadU(d, u + i))), narrow, codes + i);
  }
  ref::stochastic_block_encode(codes + i, x + i, u + i, count - i, scale, top);
}

void qsgd_encode_chunk(uint16_t* codes, const float* x, const float* u, int64_t count, float steps_per_unit,
                       int64_t levels, int sign_bit) {
  const F32 d;
  const I32 di;
  const int64_t lanes = lanes_of<float>();
  const auto factor = hn::Set(d, steps_per_unit), top = hn::Set(d, static_cast<float>(levels));
  const auto sign = hn::Set(di, 1 << sign_bit);
  const hn::Rebind<uint16_t, F32> narrow;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto level = round_stochastic(hn::Min(hn::Mul(hn::Abs(v), factor), top), hn::LoadU(d, u + i));
    const auto negative = hn::RebindMask(di, hn::Lt(v, hn::Zero(d)));
    hn::StoreU(hn::DemoteTo(narrow, hn::Or(level, hn::IfThenElseZero(negative, sign))), narrow, codes + i);
  }
  ref::qsgd_encode_values(codes + i, x + i, u + i, count - i, steps_per_unit, levels, sign_bit);
}

template <WriteMode kInto>
HWY_INLINE void put_lanes(float* y, Vec<float> v) {
  const F32 d;
  if constexpr (kInto == WriteMode::add) v = hn::Add(hn::LoadU(d, y), v);
  if constexpr (kInto == WriteMode::subtract) v = hn::Sub(hn::LoadU(d, y), v);
  hn::StoreU(v, d, y);
}

template <WriteMode kInto>
HWY_INLINE uint16_t qsgd_decode_into(float* y, const uint16_t* codes, int64_t count, float unit, int sign_bit) {
  const F32 d;
  const I32 di;
  const int64_t lanes = lanes_of<float>();
  const auto size = hn::Set(d, unit);
  const auto sign = hn::Set(di, 1 << sign_bit), mask = hn::Set(di, (1 << sign_bit) - 1);
  const hn::Rebind<uint16_t, F32> narrow;
  auto highest = hn::Zero(di);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto packed = hn::PromoteTo(di, hn::LoadU(narrow, codes + i));
    const auto level = hn::And(packed, mask);
    highest = hn::Max(highest, level);
    const auto v = hn::Mul(hn::ConvertTo(d, level), size);
    const auto negative = hn::RebindMask(d, hn::Eq(hn::And(packed, sign), sign));
    put_lanes<kInto>(y + i, hn::IfThenElse(negative, hn::Neg(v), v));
  }
  const auto seen = static_cast<uint16_t>(hn::GetLane(hn::MaxOfLanes(di, highest)));
  return std::max(seen, ref::qsgd_decode_values(y + i, kInto, codes + i, count - i, unit, sign_bit));
}

uint16_t qsgd_decode_chunk(float* y, WriteMode into, const uint16_t* codes, int64_t count, float unit, int sign_bit) {
  if (into == WriteMode::overwrite) return qsgd_decode_into<WriteMode::overwrite>(y, codes, count, unit, sign_bit);
  if (into == WriteMode::add) return qsgd_decode_into<WriteMode::add>(y, codes, count, unit, sign_bit);
  return qsgd_decode_into<WriteMode::subtract>(y, codes, count, unit, sign_bit);
}

void natural_encode_chunk(uint8_t* exponents, uint8_t* signs, const float* x, const float* u, int64_t count) {
  const F32 d;
  const I32 di;
  const int64_t lanes = lanes_of<float>();
  const hn::Rebind<uint8_t, F32> narrow;
  int64_t i = 0;
  if (lanes % 8 == 0)  // with fewer than 8 lanes a mask does not fill whole bytes
    for (; i + lanes <= count; i += lanes) {
      const auto bits = hn::BitCast(di, hn::LoadU(d, x + i));
      const auto exponent = hn::And(hn::ShiftRight<23>(bits), hn::Set(di, 255));
      const auto rest = hn::ConvertTo(d, hn::And(bits, hn::Set(di, 0x7fffff)));
      const auto drawn = hn::Lt(hn::LoadU(d, u + i), hn::Mul(rest, hn::Set(d, 0x1p-23f)));
      const auto up = hn::And(hn::RebindMask(di, drawn), hn::Lt(exponent, hn::Set(di, 254)));
      hn::StoreU(hn::DemoteTo(narrow, hn::Sub(exponent, hn::VecFromMask(di, up))), narrow, exponents + i);
      hn::StoreMaskBits(di, hn::Lt(bits, hn::Zero(di)), signs + i / 8);
    }
  ref::natural_encode_values(exponents + i, signs + i / 8, x + i, u + i, count - i);
}

template <WriteMode kInto>
HWY_INLINE void natural_decode_into(float* y, const uint8_t* exponents, const uint8_t* signs, int64_t count) {
  const F32 d;
  const I32 di;
  const int64_t lanes = lanes_of<float>();
  const hn::Rebind<uint8_t, F32> narrow;
  int64_t i = 0;
  if (lanes % 8 == 0)
    for (; i + lanes <= count; i += lanes) {
      uint64_t eight = 0;  // bits are loaded eight bytes at a time
      std::memcpy(&eight, signs + i / 8, static_cast<size_t>(lanes / 8));
      const auto negative = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&eight));
      const auto size = hn::BitCast(d, hn::ShiftLeft<23>(hn::PromoteTo(di, hn::LoadU(narrow, exponents + i))));
      put_lanes<kInto>(y + i, hn::IfThenElse(negative, hn::Neg(size), size));
    }
  ref::natural_decode_values(y + i, kInto, exponents + i, signs + i / 8, count - i);
}

void natural_decode_chunk(float* y, WriteMode into, const uint8_t* exponents, const uint8_t* signs, int64_t count) {
  if (into == WriteMode::overwrite) return natural_decode_into<WriteMode::overwrite>(y, exponents, signs, count);
  if (into == WriteMode::add) return natural_decode_into<WriteMode::add>(y, exponents, signs, count);
  natural_decode_into<WriteMode::subtract>(y, exponents, signs, count);
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(largest_bits);
HWY_EXPORT(block_encode_chunk);
HWY_EXPORT(qsgd_encode_chunk);
HWY_EXPORT(qsgd_decode_chunk);
HWY_EXPORT(natural_encode_chunk);
HWY_EXPORT(natural_decode_chunk);

namespace {

constexpr int64_t kChunk = 1024;  // a multiple of 8, so that every chunk starts at a byte

// Splits [begin, end) into chunks of at most kChunk values and calls f(first, n) for each chunk.
template <typename F>
void each_chunk(int64_t begin, int64_t end, F f) {
  for (int64_t first = begin; first < end; first += kChunk) f(first, std::min(kChunk, end - first));
}

void draw(float* u, const PhiloxKey& key, int64_t first, int64_t n) {
  fill_uniform(u, 0, 1, key.seed, key.purpose, first, n, DType::f32, {});
}

int64_t num_pieces(int64_t count, int64_t piece) {
  return (count + piece - 1) / piece;
}

}  // namespace

void quantize_stochastic(void* encoded, const float* x, int64_t count, const BlockFormat& format, const PhiloxKey& key,
                         const device::Stream& stream) {
  require_cpu(stream, "quantize_stochastic");
  ESP_CHECK(format.bits == 8 || (format.bits == 4 && format.block % 2 == 0),
            "quantize_stochastic: got {} bits, block size {}; expected 8 bits, or 4 bits and an even block size",
            format.bits, format.block);
  const auto codes_of = HWY_DYNAMIC_DISPATCH(block_encode_chunk);
  const auto largest_of = HWY_DYNAMIC_DISPATCH(largest_bits);
  const int64_t num_blocks = num_pieces(count, format.block);
  const float top = format.bits == 8 ? 127.0f : 7.0f;
  auto* bytes = static_cast<uint8_t*>(encoded);
  device::parallel_for(stream, num_blocks, row_grain(format.block), [&](int64_t begin, int64_t end) {
    alignas(64) float u[kChunk];
    alignas(64) int8_t wide[kChunk + 1];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t from = b * format.block, to = std::min(count, from + format.block);
      const int32_t largest = largest_of(x + from, to - from);
      const float scale =
          largest < 0x7f800000 ? std::bit_cast<float>(largest) / top : std::numeric_limits<float>::quiet_NaN();
      std::memcpy(bytes + 4 * b, &scale, sizeof scale);
      each_chunk(from, to, [&](int64_t first, int64_t n) {
        if (scale > 0) {
          draw(u, key, first, n);
          codes_of(wide, x + first, u, n, scale, top);
        } else {
          std::memset(wide, 0, static_cast<size_t>(n));
        }
        uint8_t* at = bytes + 4 * num_blocks + (format.bits == 8 ? first : first / 2);
        if (format.bits == 8) {
          std::memcpy(at, wide, static_cast<size_t>(n));
        } else {
          wide[n] = 0;
          for (int64_t i = 0; i < n; i += 2) at[i / 2] = static_cast<uint8_t>((wide[i] & 15) | (wide[i + 1] & 15) << 4);
        }
      });
    }
  });
}

int QsgdFormat::bits() const {
  return 1 + static_cast<int>(std::bit_width(static_cast<uint64_t>(levels)));
}

size_t qsgd_bytes(int64_t count, const QsgdFormat& format) {
  return 4 * static_cast<size_t>(num_pieces(count, format.bucket)) + packed_bytes(count, format.bits());
}

void qsgd_encode(void* encoded, const float* x, int64_t count, const QsgdFormat& format, const PhiloxKey& key,
                 const device::Stream& stream) {
  require_cpu(stream, "qsgd_encode");
  ESP_CHECK(format.bucket % 8 == 0 && format.bits() <= 16,
            "qsgd: got bucket size {}, {} levels; expected a bucket size that is a multiple of 8, at most 32767 levels",
            format.bucket, format.levels);
  const auto codes_of = HWY_DYNAMIC_DISPATCH(qsgd_encode_chunk);
  const int64_t num_buckets = num_pieces(count, format.bucket);
  auto* bytes = static_cast<uint8_t*>(encoded);
  device::parallel_for(stream, num_buckets, row_grain(format.bucket), [&](int64_t begin, int64_t end) {
    alignas(64) float u[kChunk];
    alignas(64) uint16_t codes[kChunk];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t from = b * format.bucket, to = std::min(count, from + format.bucket);
      const auto norm = static_cast<float>(std::sqrt(sum_of_squares(x + from, to - from, DType::f32, {})));
      std::memcpy(bytes + 4 * b, &norm, sizeof norm);
      const float factor = static_cast<float>(format.levels) / norm;
      const bool sound = norm > 0 && std::isfinite(factor) && std::isfinite(norm);
      each_chunk(from, to, [&](int64_t first, int64_t n) {
        if (sound) {
          draw(u, key, first, n);
          codes_of(codes, x + first, u, n, factor, format.levels, format.bits() - 1);
        } else {
          std::memset(codes, 0, sizeof codes);
        }
        pack_bits(bytes + 4 * num_buckets + first * format.bits() / 8, codes, n, format.bits());
      });
    }
  });
}

bool qsgd_decode(float* y, WriteMode into, const void* encoded, int64_t count, const QsgdFormat& format,
                 const device::Stream& stream) {
  require_cpu(stream, "qsgd_decode");
  const auto values_of = HWY_DYNAMIC_DISPATCH(qsgd_decode_chunk);
  const int64_t num_buckets = num_pieces(count, format.bucket);
  const auto* bytes = static_cast<const uint8_t*>(encoded);
  std::atomic<bool> good = true;
  device::parallel_for(stream, num_buckets, row_grain(format.bucket), [&](int64_t begin, int64_t end) {
    alignas(64) uint16_t codes[kChunk];
    for (int64_t b = begin; b < end; ++b) {
      float norm;
      std::memcpy(&norm, bytes + 4 * b, sizeof norm);
      const float unit = std::isfinite(norm) ? norm / static_cast<float>(format.levels)
                                             // 0·NaN is NaN, so all values of the bucket decode to NaN
                                             : std::numeric_limits<float>::quiet_NaN();
      each_chunk(b * format.bucket, std::min(count, (b + 1) * format.bucket), [&](int64_t first, int64_t n) {
        unpack_bits(codes, bytes + 4 * num_buckets + first * format.bits() / 8, n, format.bits());
        if (values_of(y + first, into, codes, n, unit, format.bits() - 1) > format.levels) good = false;
      });
    }
  });
  return good;
}

size_t natural_bytes(int64_t count) {
  return static_cast<size_t>(count + (count + 7) / 8);
}

void natural_encode(void* encoded, const float* x, int64_t count, const PhiloxKey& key, const device::Stream& stream) {
  require_cpu(stream, "natural_encode");
  const auto codes_of = HWY_DYNAMIC_DISPATCH(natural_encode_chunk);
  auto* exponents = static_cast<uint8_t*>(encoded);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    alignas(64) float u[kChunk];
    each_chunk(begin, end, [&](int64_t first, int64_t n) {
      draw(u, key, first, n);
      codes_of(exponents + first, exponents + count + first / 8, x + first, u, n);
    });
  });
}

void natural_decode(float* y, WriteMode into, const void* encoded, int64_t count, const device::Stream& stream) {
  require_cpu(stream, "natural_decode");
  const auto values_of = HWY_DYNAMIC_DISPATCH(natural_decode_chunk);
  const auto* exponents = static_cast<const uint8_t*>(encoded);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    values_of(y + begin, into, exponents + begin, exponents + count + begin / 8, end - begin);
  });
}

int level_bits(int64_t num_levels) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(num_levels - 1))));
}

bool levels_encode(void* encoded, const float* x, int64_t count, std::span<const float> levels, const PhiloxKey& key) {
  const int bits = level_bits(static_cast<int64_t>(levels.size()));
  float u[kChunk];
  uint16_t codes[kChunk];
  bool good = true;
  each_chunk(0, count, [&](int64_t first, int64_t n) {
    draw(u, key, first, n);
    for (int64_t i = 0; i < n; ++i) {
      const float v = std::clamp(x[first + i], levels.front(), levels.back());
      good &= v == v;
      // The first level > v, except that it is never the first level of all and never past the last level. So there is
      // always a level below it.
      const auto above = std::upper_bound(levels.begin() + 1, levels.end() - 1, v);
      const float low = *(above - 1), high = *above;
      codes[i] = static_cast<uint16_t>(above - 1 - levels.begin() + (u[i] < (v - low) / (high - low) ? 1 : 0));
    }
    pack_bits(static_cast<uint8_t*>(encoded) + first * bits / 8, codes, n, bits);
  });
  return good;
}

bool levels_decode(float* y, WriteMode into, const void* encoded, int64_t count, std::span<const float> levels) {
  const int bits = level_bits(static_cast<int64_t>(levels.size()));
  uint16_t codes[kChunk];
  bool good = true;
  each_chunk(0, count, [&](int64_t first, int64_t n) {
    unpack_bits(codes, static_cast<const uint8_t*>(encoded) + first * bits / 8, n, bits);
    for (int64_t i = 0; i < n; ++i) {
      const bool known = codes[i] < levels.size();
      good &= known;
      put(y[first + i], known ? levels[codes[i]] : 0.0f, into);
    }
  });
  return good;
}

}  // namespace esp::kernel
#endif
