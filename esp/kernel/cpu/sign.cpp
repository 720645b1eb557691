// Vectorised sign compression: a vector comparison with zero gives a mask that already contains the sign bits.
// Magnitudes are summed in fp64.
#include "esp/kernel/sign.h"
#include "esp/kernel/cuda_dispatch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "esp/kernel/cpu/sign.cpp"
#include <hwy/foreach_target.h>
// Includes below this line must follow hwy/foreach_target.h.
#include "esp/kernel/cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {

void sign_bits_block(SignSums* sums, uint8_t* bits, const float* x, int64_t count) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Tag<float> d;
  const int64_t lanes = lanes_of<float>();
  if (lanes % 8 == 0) {  // with fewer than 8 lanes a mask does not fill whole bytes
    const hn::Half<Tag<float>> half;
    const hn::Rebind<double, decltype(half)> wide;
    auto all = hn::Zero(wide), all2 = hn::Zero(wide), minus = hn::Zero(wide), minus2 = hn::Zero(wide);
    for (; i + lanes <= count; i += lanes) {
      const auto v = hn::LoadU(d, x + i), size = hn::Abs(v);
      const auto negative = hn::Lt(v, hn::Zero(d));
      hn::StoreMaskBits(d, negative, bits + i / 8);
      sums->num_negative += static_cast<int64_t>(hn::CountTrue(d, negative));
      const auto below = hn::IfThenElseZero(negative, size);
      all = hn::Add(all, hn::PromoteTo(wide, hn::LowerHalf(half, size)));
      all2 = hn::Add(all2, hn::PromoteTo(wide, hn::UpperHalf(half, size)));
      minus = hn::Add(minus, hn::PromoteTo(wide, hn::LowerHalf(half, below)));
      minus2 = hn::Add(minus2, hn::PromoteTo(wide, hn::UpperHalf(half, below)));
    }
    sums->negative = hn::GetLane(hn::SumOfLanes(wide, hn::Add(minus, minus2)));
    sums->positive = hn::GetLane(hn::SumOfLanes(wide, hn::Add(all, all2))) - sums->negative;
  }
#endif
  if (i == count) return;
  const SignSums rest = ref::sign_bits(bits + i / 8, x + i, count - i);
  sums->positive += rest.positive;
  sums->negative += rest.negative;
  sums->num_negative += rest.num_negative;
}

template <WriteMode kInto>
HWY_INLINE void choose(float* y, const uint8_t* bits, float not_negative, float negative, int64_t count) {
  const Tag<float> d;
  const int64_t lanes = lanes_of<float>();
  const auto plus = hn::Set(d, not_negative), minus = hn::Set(d, negative);
  int64_t i = 0;
  if (lanes % 8 == 0)
    for (; i + 64 <= count; i += 64) {  // bits are loaded eight bytes at a time
      for (int64_t part = 0; part < 64; part += lanes) {
        uint64_t eight = 0;
        std::memcpy(&eight, bits + (i + part) / 8, static_cast<size_t>(lanes / 8));
        auto v = hn::IfThenElse(hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&eight)), minus, plus);
        if constexpr (kInto == WriteMode::add) v = hn::Add(hn::LoadU(d, y + i + part), v);
        if constexpr (kInto == WriteMode::subtract) v = hn::Sub(hn::LoadU(d, y + i + part), v);
        hn::StoreU(v, d, y + i + part);
      }
    }
  ref::decode_sign_bits(y + i, kInto, bits + i / 8, not_negative, negative, count - i);
}

void choose_range(float* y, WriteMode into, const uint8_t* bits, float not_negative, float negative, int64_t count) {
  switch (into) {
    case WriteMode::overwrite:
      return choose<WriteMode::overwrite>(y, bits, not_negative, negative, count);
    case WriteMode::add:
      return choose<WriteMode::add>(y, bits, not_negative, negative, count);
    case WriteMode::subtract:
      return choose<WriteMode::subtract>(y, bits, not_negative, negative, count);
  }
}

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace esp::kernel {

HWY_EXPORT(sign_bits_block);
HWY_EXPORT(choose_range);

SignSums sign_bits(uint8_t* bits, const float* x, int64_t count, const device::Stream& stream) {
  require_cpu(stream, "sign_bits");
  constexpr int64_t kBlock = 32768;
  const auto block = HWY_DYNAMIC_DISPATCH(sign_bits_block);
  thread_local std::vector<SignSums> kept;
  // Workers use this reference to the caller's vector. Without it, `kept` in a worker would be the worker's own
  // thread_local vector.
  std::vector<SignSums>& sums = kept;
  sums.assign(static_cast<size_t>((count + kBlock - 1) / kBlock), {});
  device::parallel_for(stream, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      block(&sums[static_cast<size_t>(b)], bits + b * kBlock / 8, x + b * kBlock, std::min(kBlock, count - b * kBlock));
  });
  SignSums total;
  for (const SignSums& part : sums) {
    total.positive += part.positive;
    total.negative += part.negative;
    total.num_negative += part.num_negative;
  }
  return total;
}

void decode_sign_bits(float* y, WriteMode into, const uint8_t* bits, float not_negative, float negative, int64_t count,
                      const device::Stream& stream) {
  require_cpu(stream, "decode_sign_bits");
  const auto piece = HWY_DYNAMIC_DISPATCH(choose_range);
  device::parallel_for(stream, count, kElementGrain, [&](int64_t begin, int64_t end) {
    piece(y + begin, into, bits + begin / 8, not_negative, negative, end - begin);
  });
}

}  // namespace esp::kernel
#endif
