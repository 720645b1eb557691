// Stochastic rounding, one run of values at a time: random numbers, integer codes and packed bits all stay in L1.
#include "esp/kernel/random_codes.h"
#include "esp/kernel/on_cuda.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/random_codes.cpp"
#include <hwy/foreach_target.h>
// foreach_target must come first
#include "esp/kernel/bit_pack.h"
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/elementwise.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

using F32 = Tag<float>;
using I32 = hn::RebindToSigned<F32>;

// floor(steps) or one more.
HWY_INLINE hn::Vec<I32> by_chance(Vec<float> steps, Vec<float> u) {
  const F32 d;
  const auto down = hn::Floor(steps);
  const auto up = hn::Lt(u, hn::Sub(steps, down));
  return hn::ConvertTo(I32(), hn::Add(down, hn::IfThenElseZero(up, hn::Set(d, 1.0f))));
}

// Of the magnitudes, as bits: they order like numbers, and what is not finite lies above.
int32_t largest_bits(const float* x, int64_t count) {
  const I32 di;
  auto largest = hn::Zero(di);
  each_vector<float>(count, [&](auto lanes, int64_t i) HWY_ATTR {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, lanes.load(x + i)), hn::Set(di, 0x7fffffff)));
  });
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

void block_codes(int8_t* codes, const float* x, const float* u, int64_t count, float scale, float top) {
  const F32 d;
  const int64_t lanes = lanes_of<float>();
  const auto unit = hn::Set(d, scale), most = hn::Set(d, top), least = hn::Set(d, -top);
  const hn::Rebind<int8_t, F32> narrow;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto steps = hn::Min(hn::Max(hn::Div(hn::LoadU(d, x + i), unit), least), most);
    hn::StoreU(hn::DemoteTo(narrow, by_chance(steps, hn::LoadU(d, u + i))), narrow, codes + i);
  }
  ref::random_block_codes(codes + i, x + i, u + i, count - i, scale, top);
}

void qsgd_codes_run(uint16_t* codes, const float* x, const float* u, int64_t count, float steps_per_unit,
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
    const auto level = by_chance(hn::Min(hn::Mul(hn::Abs(v), factor), top), hn::LoadU(d, u + i));
    const auto negative = hn::RebindMask(di, hn::Lt(v, hn::Zero(d)));
    hn::StoreU(hn::DemoteTo(narrow, hn::Or(level, hn::IfThenElseZero(negative, sign))), narrow, codes + i);
  }
  ref::qsgd_codes(codes + i, x + i, u + i, count - i, steps_per_unit, levels, sign_bit);
}

template <WriteMode kInto>
HWY_INLINE void put_lanes(float* y, Vec<float> v) {
  const F32 d;
  if constexpr (kInto == WriteMode::add) v = hn::Add(hn::LoadU(d, y), v);
  if constexpr (kInto == WriteMode::subtract) v = hn::Sub(hn::LoadU(d, y), v);
  hn::StoreU(v, d, y);
}

template <WriteMode kInto>
HWY_INLINE uint16_t qsgd_values_into(float* y, const uint16_t* codes, int64_t count, float unit, int sign_bit) {
  const F32 d;
  const I32 di;
  const int64_t lanes = lanes_of<float>();
  const auto size = hn::Set(d, unit);
  const auto sign = hn::Set(di, 1 << sign_bit), mask = hn::Set(di, (1 << sign_bit) - 1);
  const hn::Rebind<uint16_t, F32> narrow;
  auto highest = hn::Zero(di);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto code = hn::PromoteTo(di, hn::LoadU(narrow, codes + i));
    const auto level = hn::And(code, mask);
    highest = hn::Max(highest, level);
    const auto v = hn::Mul(hn::ConvertTo(d, level), size);
    const auto negative = hn::RebindMask(d, hn::Eq(hn::And(code, sign), sign));
    put_lanes<kInto>(y + i, hn::IfThenElse(negative, hn::Neg(v), v));
  }
  const auto seen = static_cast<uint16_t>(hn::GetLane(hn::MaxOfLanes(di, highest)));
  return std::max(seen, ref::qsgd_values(y + i, kInto, codes + i, count - i, unit, sign_bit));
}

uint16_t qsgd_values_run(float* y, WriteMode into, const uint16_t* codes, int64_t count, float unit, int sign_bit) {
  if (into == WriteMode::overwrite) return qsgd_values_into<WriteMode::overwrite>(y, codes, count, unit, sign_bit);
  if (into == WriteMode::add) return qsgd_values_into<WriteMode::add>(y, codes, count, unit, sign_bit);
  return qsgd_values_into<WriteMode::subtract>(y, codes, count, unit, sign_bit);
}

void natural_codes_run(uint8_t* exponents, uint8_t* signs, const float* x, const float* u, int64_t count) {
  const F32 d;
  const I32 di;
  const int64_t lanes = lanes_of<float>();
  const hn::Rebind<uint8_t, F32> narrow;
  int64_t i = 0;
  if (lanes % 8 == 0)  // otherwise a mask is no whole number of bytes
    for (; i + lanes <= count; i += lanes) {
      const auto bits = hn::BitCast(di, hn::LoadU(d, x + i));
      const auto exponent = hn::And(hn::ShiftRight<23>(bits), hn::Set(di, 255));
      const auto rest = hn::ConvertTo(d, hn::And(bits, hn::Set(di, 0x7fffff)));
      const auto drawn = hn::Lt(hn::LoadU(d, u + i), hn::Mul(rest, hn::Set(d, 0x1p-23f)));
      const auto up = hn::And(hn::RebindMask(di, drawn), hn::Lt(exponent, hn::Set(di, 254)));
      hn::StoreU(hn::DemoteTo(narrow, hn::Sub(exponent, hn::VecFromMask(di, up))), narrow, exponents + i);
      hn::StoreMaskBits(di, hn::Lt(bits, hn::Zero(di)), signs + i / 8);
    }
  ref::natural_codes(exponents + i, signs + i / 8, x + i, u + i, count - i);
}

template <WriteMode kInto>
HWY_INLINE void natural_values_into(float* y, const uint8_t* exponents, const uint8_t* signs, int64_t count) {
  const F32 d;
  const I32 di;
  const int64_t lanes = lanes_of<float>();
  const hn::Rebind<uint8_t, F32> narrow;
  int64_t i = 0;
  if (lanes % 8 == 0)
    for (; i + lanes <= count; i += lanes) {
      uint64_t eight = 0;  // masks are read in chunks of eight bytes
      std::memcpy(&eight, signs + i / 8, static_cast<size_t>(lanes / 8));
      const auto negative = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&eight));
      const auto size = hn::BitCast(d, hn::ShiftLeft<23>(hn::PromoteTo(di, hn::LoadU(narrow, exponents + i))));
      put_lanes<kInto>(y + i, hn::IfThenElse(negative, hn::Neg(size), size));
    }
  ref::natural_values(y + i, kInto, exponents + i, signs + i / 8, count - i);
}

void natural_values_run(float* y, WriteMode into, const uint8_t* exponents, const uint8_t* signs, int64_t count) {
  if (into == WriteMode::overwrite) return natural_values_into<WriteMode::overwrite>(y, exponents, signs, count);
  if (into == WriteMode::add) return natural_values_into<WriteMode::add>(y, exponents, signs, count);
  natural_values_into<WriteMode::subtract>(y, exponents, signs, count);
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(largest_bits);
HWY_EXPORT(block_codes);
HWY_EXPORT(qsgd_codes_run);
HWY_EXPORT(qsgd_values_run);
HWY_EXPORT(natural_codes_run);
HWY_EXPORT(natural_values_run);

namespace {

constexpr int64_t kRun = 1024;  // a multiple of 8: runs begin bytes

// f(first, n) for runs of [begin, end).
template <typename F>
void each_run(int64_t begin, int64_t end, F f) {
  for (int64_t first = begin; first < end; first += kRun) f(first, std::min(kRun, end - first));
}

void draw(float* u, const RandomKey& chance, int64_t first, int64_t n) {
  fill_uniform(u, 0, 1, chance.seed, chance.purpose, first, n, DType::f32, {});
}

int64_t num_pieces(int64_t count, int64_t piece) {
  return (count + piece - 1) / piece;
}

}  // namespace

void quantize_stochastic(void* encoded, const float* x, int64_t count, const BlockCode& code, const RandomKey& chance,
                         const device::Stream& stream) {
  refuse_cuda(stream, "quantize_stochastic");
  ESP_CHECK(code.bits == 8 || (code.bits == 4 && code.block % 2 == 0), "{} bits, blocks of {}", code.bits, code.block);
  const auto codes_of = HWY_DYNAMIC_DISPATCH(block_codes);
  const auto largest_of = HWY_DYNAMIC_DISPATCH(largest_bits);
  const int64_t num_blocks = num_pieces(count, code.block);
  const float top = code.bits == 8 ? 127.0f : 7.0f;
  auto* bytes = static_cast<uint8_t*>(encoded);
  device::parallel_for(stream, num_blocks, row_grain(code.block), [&](int64_t begin, int64_t end) {
    alignas(64) float u[kRun];
    alignas(64) int8_t wide[kRun + 1];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t from = b * code.block, to = std::min(count, from + code.block);
      const int32_t largest = largest_of(x + from, to - from);
      const float scale =
          largest < 0x7f800000 ? std::bit_cast<float>(largest) / top : std::numeric_limits<float>::quiet_NaN();
      std::memcpy(bytes + 4 * b, &scale, sizeof scale);
      each_run(from, to, [&](int64_t first, int64_t n) {
        if (scale > 0) {
          draw(u, chance, first, n);
          codes_of(wide, x + first, u, n, scale, top);
        } else {
          std::memset(wide, 0, static_cast<size_t>(n));
        }
        uint8_t* at = bytes + 4 * num_blocks + (code.bits == 8 ? first : first / 2);
        if (code.bits == 8) {
          std::memcpy(at, wide, static_cast<size_t>(n));
        } else {
          wide[n] = 0;
          for (int64_t i = 0; i < n; i += 2) at[i / 2] = static_cast<uint8_t>((wide[i] & 15) | (wide[i + 1] & 15) << 4);
        }
      });
    }
  });
}

int QsgdCode::bits() const {
  return 1 + static_cast<int>(std::bit_width(static_cast<uint64_t>(levels)));
}

size_t qsgd_bytes(int64_t count, const QsgdCode& code) {
  return 4 * static_cast<size_t>(num_pieces(count, code.bucket)) + packed_bytes(count, code.bits());
}

void qsgd_encode(void* encoded, const float* x, int64_t count, const QsgdCode& code, const RandomKey& chance,
                 const device::Stream& stream) {
  refuse_cuda(stream, "qsgd_encode");
  ESP_CHECK(code.bucket % 8 == 0 && code.bits() <= 16, "buckets of {}, {} levels", code.bucket, code.levels);
  const auto codes_of = HWY_DYNAMIC_DISPATCH(qsgd_codes_run);
  const int64_t num_buckets = num_pieces(count, code.bucket);
  auto* bytes = static_cast<uint8_t*>(encoded);
  device::parallel_for(stream, num_buckets, row_grain(code.bucket), [&](int64_t begin, int64_t end) {
    alignas(64) float u[kRun];
    alignas(64) uint16_t codes[kRun];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t from = b * code.bucket, to = std::min(count, from + code.bucket);
      const auto norm = static_cast<float>(std::sqrt(sum_of_squares(x + from, to - from, DType::f32, {})));
      std::memcpy(bytes + 4 * b, &norm, sizeof norm);
      const float factor = static_cast<float>(code.levels) / norm;
      const bool sound = norm > 0 && std::isfinite(factor) && std::isfinite(norm);
      each_run(from, to, [&](int64_t first, int64_t n) {
        if (sound) {
          draw(u, chance, first, n);
          codes_of(codes, x + first, u, n, factor, code.levels, code.bits() - 1);
        } else {
          std::memset(codes, 0, sizeof codes);
        }
        pack_bits(bytes + 4 * num_buckets + first * code.bits() / 8, codes, n, code.bits());
      });
    }
  });
}

bool qsgd_decode(float* y, WriteMode into, const void* encoded, int64_t count, const QsgdCode& code,
                 const device::Stream& stream) {
  refuse_cuda(stream, "qsgd_decode");
  const auto values_of = HWY_DYNAMIC_DISPATCH(qsgd_values_run);
  const int64_t num_buckets = num_pieces(count, code.bucket);
  const auto* bytes = static_cast<const uint8_t*>(encoded);
  std::atomic<bool> good = true;
  device::parallel_for(stream, num_buckets, row_grain(code.bucket), [&](int64_t begin, int64_t end) {
    alignas(64) uint16_t codes[kRun];
    for (int64_t b = begin; b < end; ++b) {
      float norm;
      std::memcpy(&norm, bytes + 4 * b, sizeof norm);
      const float unit = std::isfinite(norm) ? norm / static_cast<float>(code.levels)
                                             : std::numeric_limits<float>::quiet_NaN();  // 0·NaN is NaN: it stays seen
      each_run(b * code.bucket, std::min(count, (b + 1) * code.bucket), [&](int64_t first, int64_t n) {
        unpack_bits(codes, bytes + 4 * num_buckets + first * code.bits() / 8, n, code.bits());
        if (values_of(y + first, into, codes, n, unit, code.bits() - 1) > code.levels) good = false;
      });
    }
  });
  return good;
}

size_t natural_bytes(int64_t count) {
  return static_cast<size_t>(count + (count + 7) / 8);
}

void natural_encode(void* encoded, const float* x, int64_t count, const RandomKey& chance,
                    const device::Stream& stream) {
  refuse_cuda(stream, "natural_encode");
  const auto codes_of = HWY_DYNAMIC_DISPATCH(natural_codes_run);
  auto* exponents = static_cast<uint8_t*>(encoded);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    alignas(64) float u[kRun];
    each_run(begin, end, [&](int64_t first, int64_t n) {
      draw(u, chance, first, n);
      codes_of(exponents + first, exponents + count + first / 8, x + first, u, n);
    });
  });
}

void natural_decode(float* y, WriteMode into, const void* encoded, int64_t count, const device::Stream& stream) {
  refuse_cuda(stream, "natural_decode");
  const auto values_of = HWY_DYNAMIC_DISPATCH(natural_values_run);
  const auto* exponents = static_cast<const uint8_t*>(encoded);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    values_of(y + begin, into, exponents + begin, exponents + count + begin / 8, end - begin);
  });
}

int level_bits(int64_t num_levels) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(num_levels - 1))));
}

bool levels_encode(void* encoded, const float* x, int64_t count, std::span<const float> levels,
                   const RandomKey& chance) {
  const int bits = level_bits(static_cast<int64_t>(levels.size()));
  float u[kRun];
  uint16_t codes[kRun];
  bool good = true;
  each_run(0, count, [&](int64_t first, int64_t n) {
    draw(u, chance, first, n);
    for (int64_t i = 0; i < n; ++i) {
      const float v = std::clamp(x[first + i], levels.front(), levels.back());
      good &= v == v;
      // The last level that is not above, and not the topmost: its neighbour above exists.
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
  uint16_t codes[kRun];
  bool good = true;
  each_run(0, count, [&](int64_t first, int64_t n) {
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
