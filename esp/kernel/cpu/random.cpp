// Random fills: element i of a stream is a function of (seed, purpose, i), independent of the partition and of the
// instruction set. No FMA is used, so that replicas on different machines start with equal values.
//
// Block b of the Philox stream gives elements 4b … 4b + 3. A uniform element takes one word. Two words (u, v) give two
// normal elements, √(−2 ln u)·cos 2πv and √(−2 ln u)·sin 2πv. Both are computed in float for every element type.
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/random.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/cpu/philox-inl.h"
#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/elementwise.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

using F32 = Tag<float>;
using Floats = Vec<float>;

// Polynomial c0 + c1·x + c2·x² + …; every product and every sum is rounded separately (no FMA).
HWY_INLINE Floats series(Floats, float c) {
  return hn::Set(F32(), c);
}
template <typename... Rest>
HWY_INLINE Floats series(Floats x, float c, Rest... rest) {
  return hn::Add(hn::Mul(series(x, rest...), x), hn::Set(F32(), c));
}

// ln u with u = 2^e·f and f in [√½, √2): e·ln 2 + 2·artanh((f − 1)/(f + 1)). Terms of the artanh series that are too
// small for float are omitted.
HWY_INLINE Floats log_unit(Floats u) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto offset = hn::Set(di, 0x3f3504f3);  // the bits of √½
  const auto e = hn::ShiftRight<23>(hn::Sub(hn::BitCast(di, u), offset));
  const auto f = hn::BitCast(d, hn::Sub(hn::BitCast(di, u), hn::ShiftLeft<23>(e)));
  const auto one = hn::Set(d, 1.0f);
  const auto s = hn::Div(hn::Sub(f, one), hn::Add(f, one));
  const auto artanh = hn::Mul(s, series(hn::Mul(s, s), 2.0f, 2.0f / 3, 2.0f / 5, 2.0f / 7, 2.0f / 9));
  return hn::Add(hn::Mul(hn::ConvertTo(d, e), hn::Set(d, 0.693147181f)), artanh);
}

// Cosine and sine of 2π·v/2^32: the top bits of v give the nearest quarter turn, and two series compute the rest.
HWY_INLINE void cos_sin_turn(Words v, Floats& c, Floats& s) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const hn::RebindToSigned<F32> di;
  const auto quarter = hn::ShiftRight<30>(hn::Add(v, hn::Set(du, 0x20000000u)));
  // ±2^31 corresponds to ±½ of a quarter turn
  const auto rest = hn::ConvertTo(d, hn::BitCast(di, hn::ShiftLeft<2>(v)));
  const auto angle = hn::Mul(rest, hn::Set(d, 1.57079633f * 0x1p-32f));
  const auto square = hn::Mul(angle, angle);
  const auto sine = hn::Mul(angle, series(square, 1.0f, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880));
  const auto cosine = series(square, 1.0f, -0.5f, 1.0f / 24, -1.0f / 720, 1.0f / 40320);
  const auto odd = hn::RebindMask(d, hn::TestBit(quarter, hn::Set(du, 1u)));
  const auto top = hn::Set(du, 0x80000000u);
  const auto minus_sin = hn::And(hn::ShiftLeft<30>(quarter), top);  // quarters 2 and 3 (of 0 to 3)
  const auto minus_cos = hn::And(hn::ShiftLeft<30>(hn::Add(quarter, hn::Set(du, 1u))), top);  // quarters 1 and 2
  c = hn::Xor(hn::IfThenElse(odd, sine, cosine), hn::BitCast(d, minus_cos));
  s = hn::Xor(hn::IfThenElse(odd, cosine, sine), hn::BitCast(d, minus_sin));
}

HWY_INLINE void normal_pair(Words u, Words v, Floats& first, Floats& second) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  // Converts the upper 31 bits as a signed number and adds half a step, so that u > 0. The largest radius is √(2 ln
  // 2^32) = 6.7.
  const auto whole = hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<1>(u)));
  const auto unit = hn::Mul(hn::Add(whole, hn::Set(d, 0.5f)), hn::Set(d, 0x1p-31f));
  const auto radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0f), log_unit(unit)));
  Floats c, s;
  cos_sin_turn(v, c, s);
  first = hn::Mul(radius, c);
  second = hn::Mul(radius, s);
}

struct Normal {
  HWY_INLINE void operator()(const PhiloxWords& w, float* to) const {
    Floats n0, n1, n2, n3;
    normal_pair(w.w0, w.w1, n0, n1);
    normal_pair(w.w2, w.w3, n2, n3);
    hn::StoreInterleaved4(n0, n1, n2, n3, F32(), to);
  }
};

struct Uniform {  // uniform in [0, 1) with 24 bits
  HWY_INLINE Floats unit(Words w) const {
    const auto bits = hn::BitCast(hn::RebindToSigned<F32>(), hn::ShiftRight<8>(w));
    return hn::Mul(hn::ConvertTo(F32(), bits), hn::Set(F32(), 0x1p-24f));
  }
  HWY_INLINE void operator()(const PhiloxWords& w, float* to) const {
    hn::StoreInterleaved4(unit(w.w0), unit(w.w1), unit(w.w2), unit(w.w3), F32(), to);
  }
};

// x[i] = offset + factor·draw(index + i)
template <typename T, class Draw>
void fill_elements(T* x, double offset, double factor, uint64_t seed, uint64_t purpose, uint64_t index, int64_t count) {
  constexpr int64_t kChunk = 1024;
  using A = Accumulator<T>;
  const int64_t step = 4 * lanes_of<float>();
  HWY_ALIGN float drawn[kChunk + 4 + 4 * hn::MaxLanes(F32())];
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(kChunk, count - first), skip = static_cast<int64_t>(index % 4);
    for (int64_t i = 0; i < skip + n; i += step)
      Draw()(philox_words(seed, purpose, index / 4 + static_cast<uint64_t>(i / 4)), drawn + i);
    for (int64_t i = 0; i < n; ++i)
      x[first + i] = static_cast<T>(static_cast<A>(offset) + static_cast<A>(factor) * static_cast<A>(drawn[skip + i]));
    index += static_cast<uint64_t>(n);
  }
}

void fill_normal_range(void* x, double mean, double std, uint64_t seed, uint64_t purpose, uint64_t index, int64_t count,
                       DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    fill_elements<T, Normal>(static_cast<T*>(x), mean, std, seed, purpose, index, count);
  });
}

void fill_uniform_range(void* x, double low, double high, uint64_t seed, uint64_t purpose, uint64_t index,
                        int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    fill_elements<T, Uniform>(static_cast<T*>(x), low, high - low, seed, purpose, index, count);
  });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(fill_normal_range);
HWY_EXPORT(fill_uniform_range);

void fill_normal(void* x, double mean, double std, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                 DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::fill_normal(x, mean, std, seed, purpose, first, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(fill_normal_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(x, begin, dtype), mean, std, seed, purpose, static_cast<uint64_t>(first + begin), end - begin, dtype);
  });
}

void fill_uniform(void* x, double low, double high, uint64_t seed, uint64_t purpose, int64_t first, int64_t count,
                  DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::fill_uniform(x, low, high, seed, purpose, first, count, dtype, stream);
  const auto piece = HWY_DYNAMIC_DISPATCH(fill_uniform_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(at(x, begin, dtype), low, high, seed, purpose, static_cast<uint64_t>(first + begin), end - begin, dtype);
  });
}

}  // namespace esp::kernel
#endif
