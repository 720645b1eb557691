// QSGD (Alistarh et al. 2017), per block: kernel/random_codes.h.
#include <algorithm>
#include <cmath>

#include "esp/kernel/random_codes.h"
#include "esp/sync/compress/compressors_list.h"

namespace esp::sync {
namespace {

class Qsgd final : public NarrowCompressor {
 public:
  explicit Qsgd(const kernel::QsgdCode& code) : code_(code) {}
  Guarantee guarantee(int64_t count) const override {
    const auto n = static_cast<double>(std::min(count, code_.bucket)), s = static_cast<double>(code_.levels);
    return {std::min(n / (s * s), std::sqrt(n) / s), {}};
  }

 protected:
  size_t bytes_of(int64_t count) const override { return kernel::qsgd_bytes(count, code_); }
  void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey& draw,
                     const device::Stream& stream) const override {
    kernel::qsgd_encode(code, x, count, code_, {draw.seed, draw.own()}, stream);
  }
  void decode_floats(float* y, WriteMode into, const std::byte* code, int64_t count,
                     const device::Stream& stream) const override {
    if (!kernel::qsgd_decode(y, into, code, count, code_, stream)) damaged("level above the maximum");
  }

 private:
  const kernel::QsgdCode code_;
};

}  // namespace

std::unique_ptr<Compressor> make_qsgd(Arguments& arguments) {
  kernel::QsgdCode code;
  code.levels = arguments.whole("levels", 16, 1, 32767);
  code.bucket = arguments.whole("bucket", 512, 8, int64_t{1} << 30);
  if (code.bucket % 8) arguments.refuse("bucket: must be a multiple of 8, because each bucket starts at a byte");
  return std::make_unique<Qsgd>(code);
}

}  // namespace esp::sync
