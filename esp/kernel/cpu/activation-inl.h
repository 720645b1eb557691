// Vectorised activation functions and their derivatives, for the activation kernels and the GEMM epilogue.
//
// f32 results have a relative error near 1e-7. For a large argument u of exp the error is |u| times larger, because
// exp(u) magnifies the rounding error of u. f64 calls activation_math.h once per lane. NaN stays NaN, and large
// magnitudes saturate. Included once per instruction set, outside of namespaces, after highway.h.
#if defined(ESP_KERNEL_CPU_ACTIVATION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_ACTIVATION_INL_H
#undef ESP_KERNEL_CPU_ACTIVATION_INL_H
#else
#define ESP_KERNEL_CPU_ACTIVATION_INL_H
#endif

#include <hwy/highway.h>

#include "esp/kernel/activation_math.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
inline constexpr bool is_f32 = sizeof(hn::TFromD<D>) == 4;

template <class D, class V, class F>
HWY_INLINE V lane_by_lane(D d, V x, F f) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(lanes[i]);
  return hn::Load(d, lanes);
}

// Polynomial c0 + c1·x + c2·x² + …
template <class D, class V>
HWY_INLINE V polynomial(D d, V, float c) {
  return hn::Set(d, c);
}
template <class D, class V, typename... Rest>
HWY_INLINE V polynomial(D d, V x, float c, float next, Rest... rest) {
  return hn::MulAdd(polynomial(d, x, next, rest...), x, hn::Set(d, c));
}

// Limits |x| to `limit`. The sign is kept, and a NaN stays a NaN.
template <class D, class V>
HWY_INLINE V clamp_magnitude(D d, V x, float limit) {
  const auto most = hn::Set(d, limit);
  return hn::IfThenElse(hn::Gt(hn::Abs(x), most), hn::CopySign(most, x), x);
}

// e^x, or 0 if the result is below the smallest normal number. x = n·ln2 + r. A polynomial gives e^r, and n is added to
// the exponent bits to multiply by 2^n.
template <class D, class V>
HWY_INLINE V exp_of(D d, V x) {
  if constexpr (!is_f32<D>) {
    return lane_by_lane(d, x, [](double lane) { return std::exp(lane); });
  } else {
    const auto magic = hn::Set(d, 12582912.0f);  // 1.5·2^23: adding it leaves the nearest integer in the low bits
    const auto n = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
    const auto whole = hn::Sub(n, magic);
    // This part of ln2 has few bits, so that the product is exact even without FMA.
    auto r = hn::NegMulAdd(whole, hn::Set(d, 0.693359375f), x);
    r = hn::NegMulAdd(whole, hn::Set(d, -2.12194440e-4f), r);
    const auto p = polynomial(d, r, 0.5f, 0.1666657703f, 0.04166655466f, 0.008363173075f, 0.001392617612f);
    const auto e = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
    const hn::RebindToSigned<D> di;
    auto y = hn::BitCast(d, hn::Add(hn::BitCast(di, e), hn::ShiftLeft<23>(hn::BitCast(di, n))));
    y = hn::IfThenElse(hn::Le(x, hn::Set(d, 88.72283f)), y, hn::Add(x, hn::Inf(d)));  // a NaN stays a NaN
    return hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.33654f)), hn::Zero(d), y);
  }
}

template <class D, class V>
HWY_INLINE V sigmoid_of(D d, V x) {
  const auto one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, exp_of(d, hn::Neg(x))));
}

// sigmoid(x) and 1 − sigmoid(x), both without cancellation; |x| < 88.
template <class D, class V>
HWY_INLINE void sigmoid_pair(D d, V x, V& s, V& complement) {
  const auto one = hn::Set(d, 1.0f);
  const auto e = exp_of(d, hn::Neg(x));
  s = hn::Div(one, hn::Add(one, e));
  complement = hn::Mul(e, s);
}

template <class D, class V>
HWY_INLINE V gelu_argument(D d, V x) {
  const auto square = hn::Mul(x, x);
  return hn::Mul(x, hn::MulAdd(square, hn::Set(d, static_cast<float>(kGelu3)), hn::Set(d, static_cast<float>(kGelu1))));
}

// e^(−x²/2), corrected for the rounding of x².
template <class D, class V>
HWY_INLINE V gaussian(D d, V x) {
  const auto square = hn::Mul(x, x);
  const auto lost = hn::MulSub(x, x, square);
  const auto half = hn::Set(d, 0.5f);
  const auto e = exp_of(d, hn::Neg(hn::Mul(half, square)));
  return hn::NegMulAdd(hn::Mul(e, half), lost, e);
}

// Cumulative distribution function of the standard normal distribution for |x| ≤ 14, given gaussian(x). For x < 0 it is
// gaussian(x)·q(|x|). q(a)·(a + 3) is a smooth function of t = (a − 3)/(a + 3); a polynomial in t approximates it with
// an error of 3.4e-8.
template <class D, class V>
HWY_INLINE V normal_cdf_lanes(D d, V x, V bell_x) {
  const auto a = hn::Abs(x), three = hn::Set(d, 3.0f), one = hn::Set(d, 1.0f);
  const auto inverse = hn::Div(one, hn::Add(a, three));
  const auto t = hn::Mul(hn::Sub(a, three), inverse);
  const auto p = polynomial(d, t, 0.7290836811f, -0.5093321503f, 0.2300183778f, -0.04725847305f, -0.0104693361f,
                            0.006937178445f, 0.001040702986f, -0.0009373515231f, -0.0002300492795f, 3.418587183e-5f);
  const auto tail = hn::Mul(hn::Mul(bell_x, inverse), p);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
}

template <class D, class V>
HWY_INLINE V tanh_of(D d, V x) {
  const auto a = hn::Abs(x), one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const auto square = hn::Mul(x, x);
  const auto p = polynomial(d, square, -0.3333332894f, 0.1333276974f, -0.05385090958f, 0.020997179f, -0.006096714166f);
  const auto small = hn::MulAdd(hn::Mul(a, square), p, a);
  const auto large = hn::Sub(one, hn::Div(two, hn::Add(exp_of(d, hn::Add(a, a)), one)));
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, large), x);
}

template <Activation activation, class D, class V>
HWY_INLINE V activation_lanes(D d, V x) {
  if constexpr (activation == Activation::none) {
    return x;
  } else if constexpr (activation == Activation::relu) {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
  } else if constexpr (!is_f32<D>) {
    return lane_by_lane(d, x, [](double lane) { return activation_value<activation>(lane); });
  } else if constexpr (activation == Activation::gelu) {
    return hn::Mul(x, sigmoid_of(d, gelu_argument(d, x)));
  } else if constexpr (activation == Activation::gelu_erf) {
    const auto near = clamp_magnitude(d, x, 14.0f);
    return hn::Mul(x, normal_cdf_lanes(d, near, gaussian(d, near)));
  } else if constexpr (activation == Activation::silu) {
    return hn::Mul(x, sigmoid_of(d, x));
  } else {
    return tanh_of(d, x);
  }
}

template <Activation activation, class D, class V>
HWY_INLINE V activation_derivative_lanes(D d, V x) {
  const auto one = hn::Set(d, hn::TFromD<D>{1});
  if constexpr (activation == Activation::none) {
    return one;
  } else if constexpr (activation == Activation::relu) {
    return hn::IfThenElse(hn::Le(x, hn::Zero(d)), hn::Zero(d), one);
  } else if constexpr (!is_f32<D>) {
    return lane_by_lane(d, x, [](double lane) { return activation_derivative<activation>(lane); });
  } else if constexpr (activation == Activation::gelu) {
    const auto near = clamp_magnitude(d, x, 10.0f);  // outside of ±10 the derivative is 0 or 1
    const auto c1 = hn::Set(d, static_cast<float>(kGelu1)), c3 = hn::Set(d, static_cast<float>(3 * kGelu3));
    V s, complement;
    sigmoid_pair(d, gelu_argument(d, near), s, complement);
    const auto inner = hn::Mul(near, hn::MulAdd(hn::Mul(near, near), c3, c1));
    return hn::Mul(s, hn::MulAdd(inner, complement, one));
  } else if constexpr (activation == Activation::gelu_erf) {
    const auto near = clamp_magnitude(d, x, 14.0f);
    const auto e = gaussian(d, near);
    return hn::MulAdd(hn::Mul(near, hn::Set(d, 0.39894228f)), e, normal_cdf_lanes(d, near, e));
  } else if constexpr (activation == Activation::silu) {
    const auto near = clamp_magnitude(d, x, 80.0f);
    V s, complement;
    sigmoid_pair(d, near, s, complement);
    return hn::Mul(s, hn::MulAdd(near, complement, one));
  } else {  // derivative: 1 - tanh² = 4e/(1 + e)² with e = exp(-2|x|)
    const auto e = exp_of(d, hn::Mul(hn::Abs(x), hn::Set(d, -2.0f)));
    const auto sum = hn::Add(one, e);
    return hn::Div(hn::Mul(hn::Set(d, 4.0f), e), hn::Mul(sum, sum));
  }
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // included once per instruction set
