// Dropout of attention probabilities, one row of a tile at a time. The mask is defined in dropout.h.
#if defined(ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H
#undef ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H
#else
#define ESP_KERNEL_CPU_ATTENTION_DROPOUT_INL_H
#endif

#include <cmath>

#include <hwy/highway.h>

#include "esp/kernel/cpu/attention_work.h"
#include "esp/kernel/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace esp::kernel::HWY_NAMESPACE {
namespace flash {
namespace hn = hwy::HWY_NAMESPACE;

class RowDropout {
 public:
  explicit RowDropout(const AttentionShape& shape)
      : shape_(shape), threshold_(static_cast<uint32_t>(std::ceil(shape.dropout * 0x1p32))) {}

  bool active() const { return shape_.dropout > 0; }

  // Sets the dropped elements of p to zero. p holds the probabilities of query i for keys [j, j + count).
  template <typename A>
  void apply(A* p, int64_t b, int64_t h, int64_t i, int64_t j, int64_t count) {
    const uint32_t* words = draw(b, h, i, j, count);
    for (int64_t k = 0; k < count; ++k) p[k] = words[k] >= threshold_ ? p[k] : A{0};
  }

  // keep[k] = 1/(1 − rate) if the probability of key j + k is kept, else 0.
  template <typename A>
  void factors(A* keep, int64_t b, int64_t h, int64_t i, int64_t j, int64_t count) {
    const uint32_t* words = draw(b, h, i, j, count);
    const A kept = static_cast<A>(1 / (1 - shape_.dropout));
    for (int64_t k = 0; k < count; ++k) keep[k] = words[k] >= threshold_ ? kept : A{0};
  }

 private:
  const uint32_t* draw(int64_t b, int64_t h, int64_t i, int64_t j, int64_t count) {
    const int64_t index = shape_.dropout_index(b, h, i, j);
    const auto first = static_cast<uint64_t>(index >> 2);
    const int64_t num_groups = ((index & 3) + count + 3) / 4;
    for (int64_t g = 0; g < num_groups; g += kGroups) {
      const PhiloxWords w = philox_words(shape_.key.seed, shape_.key.purpose, first + static_cast<uint64_t>(g));
      hn::StoreInterleaved4(w.w0, w.w1, w.w2, w.w3, hn::ScalableTag<uint32_t>(), words_ + 4 * g);
    }
    return words_ + (index & 3);
  }

  static constexpr int64_t kGroups = hn::MaxLanes(hn::ScalableTag<uint32_t>());

  const AttentionShape& shape_;
  const uint32_t threshold_;
  HWY_ALIGN uint32_t words_[kAttentionTile + 8 + 4 * kGroups];
};

}  // namespace flash
}  // namespace esp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // included once per instruction set
