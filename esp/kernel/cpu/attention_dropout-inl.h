// Which probabilities are dropped: dropout.h's rule, a row of a tile at a time.
#if defined(ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H
#undef ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H
#else
#define ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H
#endif

#include <cmath>

#include <hwy/highway.h>

#include "esp/base/rng.h"
#include "esp/kernel/cpu/attention_work.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace attend {
namespace hn = hwy::HWY_NAMESPACE;

class RowDropout {
 public:
  explicit RowDropout(const AttentionShape& shape)
      : shape_(shape), threshold_(static_cast<uint32_t>(std::ceil(shape.dropout * 0x1p32))) {}

  bool active() const { return shape_.dropout > 0; }

  // Zeroes the dropped ones of p, the probabilities of query i for keys [j, j + count).
  template <typename A>
  void apply(A* p, int64_t b, int64_t h, int64_t i, int64_t j, int64_t count) {
    const uint32_t* words = draw(b, h, i, j, count);
    for (int64_t k = 0; k < count; ++k) p[k] = words[k] >= threshold_ ? p[k] : A{0};
  }

  // keep[k] = 1/(1 − rate) or 0.
  template <typename A>
  void factors(A* keep, int64_t b, int64_t h, int64_t i, int64_t j, int64_t count) {
    const uint32_t* words = draw(b, h, i, j, count);
    const A kept = static_cast<A>(1 / (1 - shape_.dropout));
    for (int64_t k = 0; k < count; ++k) keep[k] = words[k] >= threshold_ ? kept : A{0};
  }

 private:
  const uint32_t* draw(int64_t b, int64_t h, int64_t i, int64_t j, int64_t count) {
    const int64_t row = ((shape_.first_batch + b) * shape_.heads + h) * shape_.num_queries + i;
    const int64_t index = row * shape_.num_keys + j;
    const auto first = static_cast<uint64_t>(index >> 2);
    const int64_t num_groups = ((index & 3) + count + 3) / 4;
    for (int64_t g = 0; g < num_groups; g += kGroups) draw_groups(words_ + 4 * g, first + static_cast<uint64_t>(g));
    return words_ + (index & 3);
  }

#if HWY_TARGET == HWY_SCALAR
  static constexpr int64_t kGroups = 1;
  HWY_INLINE void draw_groups(uint32_t* to, uint64_t group) const {
    const DropoutKey& key = shape_.key;
    const auto words = philox({static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                               static_cast<uint32_t>(key.purpose), static_cast<uint32_t>(key.purpose >> 32)},
                              {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
    std::copy(words.begin(), words.end(), to);
  }
#else
  static constexpr hn::ScalableTag<uint32_t> d{};
  using Words = hn::Vec<hn::ScalableTag<uint32_t>>;
  static constexpr int64_t kGroups = hn::MaxLanes(hn::ScalableTag<uint32_t>());

  static HWY_INLINE void multiply_wide(Words a, uint32_t by, Words& high, Words& low) {
    const hn::RepartitionToWide<hn::ScalableTag<uint32_t>> wide;
    const auto even = hn::MulEven(a, hn::Set(d, by));
    const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), hn::Set(d, by));
    high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
    low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  }

  // Philox of kGroups consecutive counters, four words each.
  HWY_INLINE void draw_groups(uint32_t* to, uint64_t group) const {
    const DropoutKey& key = shape_.key;
    const auto low = static_cast<uint32_t>(group), high = static_cast<uint32_t>(group >> 32);
    Words c0 = hn::Iota(d, low);
    Words c1 = hn::Set(d, high);
    c1 = hn::IfThenElse(hn::Lt(c0, hn::Set(d, low)), hn::Set(d, high + 1), c1);  // the lanes that carried
    Words c2 = hn::Set(d, static_cast<uint32_t>(key.purpose)),
          c3 = hn::Set(d, static_cast<uint32_t>(key.purpose >> 32));
    auto k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      Words a_high, a_low, b_high, b_low;
      multiply_wide(c0, 0xD2511F53u, a_high, a_low);
      multiply_wide(c2, 0xCD9E8D57u, b_high, b_low);
      c0 = hn::Xor(hn::Xor(b_high, c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(a_high, c3), hn::Set(d, k1));
      c1 = b_low;
      c3 = a_low;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, d, to);
  }
#endif

  const AttentionShape& shape_;
  const uint32_t threshold_;
  HWY_ALIGN uint32_t words_[kAttentionTile + 8 + 4 * kGroups];
};

}  // namespace attend
}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
