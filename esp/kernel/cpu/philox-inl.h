// Philox (base/rng.h) on vectors: one counter per lane, the same words as the scalar function.
//
// Words come in the order of the stream: block b of a key gives words 4b … 4b + 3. Included once per instruction set,
// inside no namespace, after foreach_target.h.
#if defined(ESP_KERNEL_CPU_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_PHILOX_INL_H
#undef ESP_KERNEL_CPU_PHILOX_INL_H
#else
#define ESP_KERNEL_CPU_PHILOX_INL_H
#endif

#include <cstdint>

#include <hwy/highway.h>

#include "esp/base/rng.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::Vec<hn::ScalableTag<uint32_t>>;

// The four words of blocks first, first + 1, … one block per lane.
struct PhiloxWords {
  Words w0, w1, w2, w3;
};

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE PhiloxWords philox_words(uint64_t seed, uint64_t purpose, uint64_t first) {
  const hn::ScalableTag<uint32_t> d;
  const auto words = philox({static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
                             static_cast<uint32_t>(purpose), static_cast<uint32_t>(purpose >> 32)},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {hn::Set(d, words[0]), hn::Set(d, words[1]), hn::Set(d, words[2]), hn::Set(d, words[3])};
}
#else
// Both halves of the 64-bit products: even lanes multiply as they are, odd ones after a shift.
HWY_INLINE void multiply(Words a, Words b, Words& low, Words& high) {
  const hn::ScalableTag<uint32_t> d;
  const hn::RepartitionToWide<hn::ScalableTag<uint32_t>> wide;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

HWY_INLINE PhiloxWords philox_words(uint64_t seed, uint64_t purpose, uint64_t first) {
  const hn::ScalableTag<uint32_t> d;
  const auto base = hn::Set(d, static_cast<uint32_t>(first));
  auto c0 = hn::Add(base, hn::Iota(d, 0u));
  const auto carry = hn::IfThenElseZero(hn::Lt(c0, base), hn::Set(d, 1u));
  auto c1 = hn::Add(hn::Set(d, static_cast<uint32_t>(first >> 32)), carry);
  auto c2 = hn::Set(d, static_cast<uint32_t>(purpose)), c3 = hn::Set(d, static_cast<uint32_t>(purpose >> 32));
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  const auto m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    Words low0, high0, low1, high1;
    multiply(c0, m0, low0, high0);
    multiply(c2, m1, low1, high1);
    c0 = hn::Xor(high1, hn::Xor(c1, hn::Set(d, k0)));
    c1 = low1;
    c2 = hn::Xor(high0, hn::Xor(c3, hn::Set(d, k1)));
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}
#endif

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
