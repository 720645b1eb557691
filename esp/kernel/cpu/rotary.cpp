// Rotary position embedding (RoPE). The cosines and sines of a position are computed once, in vectors of double, and
// used for all heads of all rows at that position. Threads split the positions.
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/rotary.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"
#include "esp/kernel/cuda_dispatch.h"
#include "esp/kernel/embedding.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

using Doubles = Vec<double>;

HWY_INLINE Doubles series(Doubles, double c) {
  return hn::Set(Tag<double>(), c);
}
template <typename... Rest>
HWY_INLINE Doubles series(Doubles x, double c, Rest... rest) {
  return hn::MulAdd(series(x, rest...), x, hn::Set(Tag<double>(), c));
}

// Cosine and sine with error 1e-12 for angles below 2^28. Multiples of π/2 are subtracted in three steps. The constants
// of the first two steps have few bits, so that their products are exact.
HWY_INLINE void cos_sin(Doubles angle, Doubles& c, Doubles& s) {
  const Tag<double> d;
  const hn::RebindToUnsigned<Tag<double>> du;
  const auto turns = hn::Round(hn::Mul(angle, hn::Set(d, 0.63661977236758134)));
  auto x = hn::NegMulAdd(turns, hn::Set(d, 0x1.921fb4p+0), angle);
  x = hn::NegMulAdd(turns, hn::Set(d, 0x1.4442dp-24), x);
  x = hn::NegMulAdd(turns, hn::Set(d, 0x1.8469898cc517p-48), x);
  const auto square = hn::Mul(x, x);
  const auto sine = hn::Mul(
      x, series(square, 1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800));
  const auto cosine = series(square, 1.0, -0.5, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600);
  // The lowest mantissa bit of turns + 1.5·2^52 has the value 1, so the two lowest bits of the sum are turns mod 4.
  const auto quarter = hn::BitCast(du, hn::Add(turns, hn::Set(d, 0x1.8p52)));
  const auto odd = hn::RebindMask(d, hn::TestBit(quarter, hn::Set(du, 1u)));
  const auto top = hn::Set(du, uint64_t{1} << 63);
  const auto minus_sin = hn::And(hn::ShiftLeft<62>(quarter), top);
  const auto minus_cos = hn::And(hn::ShiftLeft<62>(hn::Add(quarter, hn::Set(du, 1u))), top);
  c = hn::Xor(hn::IfThenElse(odd, sine, cosine), hn::BitCast(d, minus_cos));
  s = hn::Xor(hn::IfThenElse(odd, cosine, sine), hn::BitCast(d, minus_sin));
}

// Computes the cosines and sines of position·frequencies[i], times `size`. Sines are also multiplied by `direction` (1,
// or −1 for the inverse rotation).
template <typename A>
HWY_INLINE void angles_of(A* cosines, A* sines, const double* frequencies, double position, double size,
                          double direction, int64_t half) {
  if constexpr (sizeof(A) == 8) {  // f64 is used to verify results, so it uses std::cos and std::sin
    for (int64_t i = 0; i < half; ++i) {
      cosines[i] = size * std::cos(position * frequencies[i]);
      sines[i] = direction * size * std::sin(position * frequencies[i]);
    }
  } else {
    const Tag<double> d;
    const hn::Rebind<float, Tag<double>> narrow;
    const auto at_position = hn::Set(d, position), straight = hn::Set(d, size), across = hn::Set(d, direction * size);
    // the last vector may write past `half`: the arrays have room for whole vectors
    for (int64_t i = 0; i < half; i += lanes_of<double>()) {
      Doubles c, s;
      cos_sin(hn::Mul(hn::LoadU(d, frequencies + i), at_position), c, s);
      hn::StoreU(hn::DemoteTo(narrow, hn::Mul(c, straight)), narrow, cosines + i);
      hn::StoreU(hn::DemoteTo(narrow, hn::Mul(s, across)), narrow, sines + i);
    }
  }
}

constexpr int64_t kMostPairs = 512;

template <typename T>
void rotate_positions(T* x, const RotaryShape& shape, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const int64_t half = shape.head_dim / 2;
  double frequencies[kMostPairs + hn::MaxLanes(Tag<double>())] = {};
  const RotaryFrequencies scaling = rotary_frequencies(shape.angles, shape.head_dim);
  for (int64_t i = 0; i < half; ++i)
    frequencies[i] = scaling.scaled(plain_frequency(shape.angles, i, shape.head_dim), i);
  A cosines[kMostPairs + hn::MaxLanes(Tag<double>())], sines[kMostPairs + hn::MaxLanes(Tag<double>())];
  const A *cosine = cosines, *sine = sines;
  for (int64_t p = begin; p < end; ++p) {
    angles_of(cosines, sines, frequencies, static_cast<double>(shape.first_position + p), scaling.size,
              shape.inverse ? -1.0 : 1.0, half);
    for (int64_t r = shape.begin + p; r < shape.rows; r += shape.period)
      for (int64_t h = 0; h < shape.heads; ++h) {
        T* low = x + r * shape.row_stride + h * shape.head_dim;
        T* high = low + half;
        each_vector<T>(half, [=](auto lanes, int64_t i) HWY_ATTR {
          const auto a = lanes.load(low + i), b = lanes.load(high + i);
          const auto c = lanes.load(cosine + i), s = lanes.load(sine + i);
          lanes.store(hn::NegMulAdd(b, s, hn::Mul(a, c)), low + i);
          lanes.store(hn::MulAdd(a, s, hn::Mul(b, c)), high + i);
        });
      }
  }
}

void rotary_range(void* x, const RotaryShape& shape, int64_t begin, int64_t end, DType dtype) {
  with_floating(dtype,
                [&]<typename T>(std::type_identity<T>) { rotate_positions(static_cast<T*>(x), shape, begin, end); });
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(rotary_range);

void rotary(void* x, const RotaryShape& shape, DType dtype, const device::Stream& stream) {
  if (is_cuda(stream)) return cuda::rotary(x, shape, dtype, stream);
  constexpr int64_t kMaxHeadDim = 1024;
  ESP_CHECK(shape.head_dim % 2 == 0 && shape.head_dim <= kMaxHeadDim,
            "rotary head_dim: got {}; must be even and at most 1024", shape.head_dim);
  ESP_CHECK(shape.period >= 1 || shape.rows == 0, "rotary period: got {}; must be >= 1", shape.period);
  ESP_CHECK(shape.begin >= 0 && shape.end <= shape.period,
            "rotary: got the row range [{}, {}); must be within [0, {}] (the period)", shape.begin, shape.end,
            shape.period);
  const auto piece = HWY_DYNAMIC_DISPATCH(rotary_range);
  const int64_t period = std::min(shape.rows, shape.period);
  const int64_t rows_each = period ? (shape.rows + period - 1) / period : 1;
  const int64_t positions = std::max<int64_t>(0, std::min(period, shape.last()) - shape.begin);
  device::parallel_for(stream, positions, row_grain(rows_each * shape.heads * shape.head_dim),
                       [&](int64_t begin, int64_t end) { piece(x, shape, begin, end, dtype); });
}

}  // namespace esp::kernel
#endif
