// Compressor qsgd (Alistarh et al. 2017), applied to each bucket of values; encoded as in kernel/random_codes.h.
#include <algorithm>
#include <cmath>

#include "esp/kernel/stochastic_rounding.h"
#include "esp/sync/compress/compressor_factories.h"

namespace esp::sync {
namespace {

class Qsgd final : public NarrowCompressor {
 public:
  explicit Qsgd(const kernel::QsgdFormat& code) : code_(code) {}
  Guarantee guarantee(int64_t count) const override {
    const auto n = static_cast<double>(std::min(count, code_.bucket)), s = static_cast<double>(code_.levels);
    return {std::min(n / (s * s), std::sqrt(n) / s), {}};
  }

 protected:
  size_t bytes_of(int64_t count) const override { return kernel::qsgd_bytes(count, code_); }
  void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey& draw,
                     const device::Stream& stream) const override {
    kernel::qsgd_encode(code, x, count, code_, {draw.seed, draw.private_stream()}, stream);
  }
  void decode_floats(float* y, WriteMode into, const std::byte* code, int64_t count,
                     const device::Stream& stream) const override {
    if (!kernel::qsgd_decode(y, into, code, count, code_, stream)) fail_corrupt("level above the maximum");
  }

 private:
  const kernel::QsgdFormat code_;
};

}  // namespace

std::unique_ptr<Compressor> make_qsgd(SpecArguments& arguments) {
  kernel::QsgdFormat code;
  code.levels = arguments.integer("levels", 16, 1, 32767);
  code.bucket = arguments.integer("bucket", 512, 8, int64_t{1} << 30);
  if (code.bucket % 8) arguments.fail("bucket: must be a multiple of 8, because each bucket starts at a byte");
  return std::make_unique<Qsgd>(code);
}

}  // namespace esp::sync
