// Compressor natural (Horváth et al. 2019): rounding to powers of two, encoded as in kernel/random_codes.h.
#include "esp/kernel/stochastic_rounding.h"
#include "esp/sync/compress/compressor_factories.h"

namespace esp::sync {
namespace {

class Natural final : public NarrowCompressor {
 public:
  Guarantee guarantee(int64_t) const override { return {0.125, {}}; }

 protected:
  size_t bytes_of(int64_t count) const override { return kernel::natural_bytes(count); }
  void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey& draw,
                     const device::Stream& stream) const override {
    kernel::natural_encode(code, x, count, {draw.seed, draw.private_stream()}, stream);
  }
  void decode_floats(float* y, WriteMode into, const std::byte* code, int64_t count,
                     const device::Stream& stream) const override {
    kernel::natural_decode(y, into, code, count, stream);
  }
};

}  // namespace

std::unique_ptr<Compressor> make_natural(SpecArguments&) {
  return std::make_unique<Natural>();
}

}  // namespace esp::sync
