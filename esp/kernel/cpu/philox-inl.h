// Vectorised Philox random number generator (base/rng.h): one counter per lane. It gives the same words as the scalar
// function.
//
// Words are in the order of the stream: block b of a key gives words 4b … 4b + 3. Included once per instruction set,
// outside of namespaces, after foreach_target.h.
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

// The random words of consecutive Philox blocks, one block per lane. A block has four words, w0 to w3.
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
// Counters are in the low halves of 64-bit lanes, where one multiplication gives the low and the high word. The
// multiplication ignores the upper halves, so they may hold anything.
struct PhiloxState {
  using Lanes = hn::Vec<hn::ScalableTag<uint64_t>>;
  Lanes c0, c1, c2, c3;
  HWY_INLINE PhiloxState(Lanes blocks, uint64_t purpose) {
    const hn::ScalableTag<uint64_t> d;
    c0 = blocks;
    c1 = hn::ShiftRight<32>(blocks);
    c2 = hn::Set(d, purpose);
    c3 = hn::Set(d, purpose >> 32);
  }
  HWY_INLINE void round(uint32_t k0, uint32_t k1) {
    const hn::ScalableTag<uint64_t> d;
    const hn::ScalableTag<uint32_t> words;
    const auto a = hn::MulEven(hn::BitCast(words, c0), hn::Set(words, 0xD2511F53u));
    const auto b = hn::MulEven(hn::BitCast(words, c2), hn::Set(words, 0xCD9E8D57u));
    c0 = hn::Xor3(hn::ShiftRight<32>(b), c1, hn::Set(d, uint64_t{k0}));
    c1 = b;
    c2 = hn::Xor3(hn::ShiftRight<32>(a), c3, hn::Set(d, uint64_t{k1}));
    c3 = a;
  }
};

HWY_INLINE Words side_by_side(PhiloxState::Lanes even, PhiloxState::Lanes odd) {
  const hn::ScalableTag<uint32_t> d;
  return hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

HWY_INLINE PhiloxWords philox_words(uint64_t seed, uint64_t purpose, uint64_t first) {
  const hn::ScalableTag<uint64_t> d;
  const auto blocks = hn::Add(hn::Set(d, first), hn::ShiftLeft<1>(hn::Iota(d, 0)));
  PhiloxState even(blocks, purpose), odd(hn::Add(blocks, hn::Set(d, 1)), purpose);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    even.round(k0, k1);
    odd.round(k0, k1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {side_by_side(even.c0, odd.c0), side_by_side(even.c1, odd.c1), side_by_side(even.c2, odd.c2),
          side_by_side(even.c3, odd.c3)};
}
#endif

}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // included once per instruction set
