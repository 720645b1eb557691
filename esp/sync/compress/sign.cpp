// Compressors sign and onebit: one bit per value. sign decodes to ± the mean magnitude ‖x‖₁/n, which is contractive for
// every x (with ‖x‖₂/√n it would not be). onebit (Seide et al. 2014) decodes every negative value to the mean of the
// negative values, and every other value to the mean of the others. Layout: one or two fp32 numbers, then the bits of
// kernel/sign.h.
#include <algorithm>
#include <cstring>

#include "esp/kernel/sign.h"
#include "esp/sync/compress/compressor_factories.h"

namespace esp::sync {
namespace {

class Sign final : public NarrowCompressor {
 public:
  explicit Sign(bool two_means) : two_means_(two_means), head_(two_means ? 8 : 4) {}
  Guarantee guarantee(int64_t count) const override {
    return {{}, 1 / static_cast<double>(std::max<int64_t>(count, 1))};
  }

 protected:
  size_t bytes_of(int64_t count) const override { return head_ + static_cast<size_t>((count + 7) / 8); }
  void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey&,
                     const device::Stream& stream) const override {
    const kernel::SignSums sums = kernel::sign_bits(reinterpret_cast<uint8_t*>(code) + head_, x, count, stream);
    auto mean = [](double sum, int64_t n) { return n ? static_cast<float>(sum / static_cast<double>(n)) : 0.0f; };
    float means[2] = {mean(sums.positive + sums.negative, count), 0};
    if (two_means_) {
      means[0] = mean(sums.positive, count - sums.num_negative);
      means[1] = -mean(sums.negative, sums.num_negative);
    }
    std::memcpy(code, means, head_);
  }
  void decode_floats(float* y, WriteMode into, const std::byte* code, int64_t count,
                     const device::Stream& stream) const override {
    float means[2];
    std::memcpy(means, code, head_);
    kernel::decode_sign_bits(y, into, reinterpret_cast<const uint8_t*>(code) + head_, means[0],
                             two_means_ ? means[1] : -means[0], count, stream);
  }

 private:
  const bool two_means_;
  const size_t head_;
};

}  // namespace

std::unique_ptr<Compressor> make_sign(SpecArguments&) {
  return std::make_unique<Sign>(false);
}
std::unique_ptr<Compressor> make_one_bit(SpecArguments&) {
  return std::make_unique<Sign>(true);
}

}  // namespace esp::sync
