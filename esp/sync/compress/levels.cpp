// Compressor random: a stochastic quantiser with levels l₀ < l₁ < …. A value is rounded randomly to the level below or
// above, with probabilities that preserve its expectation. Values outside the range are clipped; inside it the
// quantiser is unbiased.
#include <algorithm>

#include "esp/base/error.h"
#include "esp/kernel/bit_pack.h"
#include "esp/kernel/stochastic_rounding.h"
#include "esp/sync/compress/compressor_factories.h"

namespace esp::sync {
namespace {

class Levels final : public NarrowCompressor {
 public:
  explicit Levels(std::vector<float> levels) : levels_(std::move(levels)) {}
  // no bound relative to ‖x‖: the error depends on the distance between levels
  Guarantee guarantee(int64_t) const override { return {}; }

 protected:
  size_t bytes_of(int64_t count) const override {
    return kernel::packed_bytes(count, kernel::level_bits(static_cast<int64_t>(levels_.size())));
  }
  void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey& draw,
                     const device::Stream&) const override {
    if (!kernel::levels_encode(code, x, count, levels_, {draw.seed, draw.private_stream()}))
      throw UsageError("compressor random: got NaN in the vector; expected numbers, because no level encodes NaN");
  }
  void decode_floats(float* y, WriteMode into, const std::byte* code, int64_t count,
                     const device::Stream&) const override {
    if (!kernel::levels_decode(y, into, code, count, levels_)) fail_corrupt("level index out of range");
  }

 private:
  const std::vector<float> levels_;
};

}  // namespace

std::unique_ptr<Compressor> make_levels(SpecArguments& arguments) {
  std::vector<float> levels;
  if (arguments.empty())  // default: 4095 levels (12 bits per value) for values clipped to [−1, 1]
    for (int step = -2047; step <= 2047; ++step) levels.push_back(static_cast<float>(step) / 2047);
  else
    for (double level : arguments.numbers("levels")) levels.push_back(static_cast<float>(level));
  if (levels.size() < 2 || levels.size() > 65536) arguments.fail("expected 2 to 65536 levels");
  if (!std::is_sorted(levels.begin(), levels.end(), std::less_equal<>()))
    arguments.fail("levels must be strictly ascending");
  return std::make_unique<Levels>(std::move(levels));
}

}  // namespace esp::sync
