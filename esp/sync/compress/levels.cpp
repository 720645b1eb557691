// The random quantiser: levels l₀ < l₁ < …, a value goes to the one below or the one above so that its mean stays.
// Values beyond the ends go to the end; within them it is unbiased.
#include <algorithm>

#include "esp/base/error.h"
#include "esp/kernel/bit_pack.h"
#include "esp/kernel/random_codes.h"
#include "esp/sync/compress/compressors_list.h"

namespace esp::sync {
namespace {

class Levels final : public NarrowCompressor {
 public:
  explicit Levels(std::vector<float> levels) : levels_(std::move(levels)) {}
  Guarantee guarantee(int64_t) const override { return {}; }  // its error is absolute, by the steps' width

 protected:
  size_t bytes_of(int64_t count) const override {
    return kernel::packed_bytes(count, kernel::level_bits(static_cast<int64_t>(levels_.size())));
  }
  void encode_floats(std::byte* code, const float* x, int64_t count, const Draw& draw,
                     const device::Stream&) const override {
    if (!kernel::levels_encode(code, x, count, levels_, {draw.seed, draw.own()}))
      throw UsageError("random: a value is not a number, and no level can stand for it");
  }
  void decode_floats(float* y, Into into, const std::byte* code, int64_t count, const device::Stream&) const override {
    if (!kernel::levels_decode(y, into, code, count, levels_)) damaged("the number of a level that does not exist");
  }

 private:
  const std::vector<float> levels_;
};

}  // namespace

std::unique_ptr<Compressor> make_levels(Arguments& arguments) {
  std::vector<float> levels;
  if (arguments.empty())  // twelve bits for what clipping leaves between −1 and 1
    for (int step = -2047; step <= 2047; ++step) levels.push_back(static_cast<float>(step) / 2047);
  else
    for (double level : arguments.numbers("the levels")) levels.push_back(static_cast<float>(level));
  if (levels.size() < 2 || levels.size() > 65536) arguments.refuse("between 2 and 65536 levels are needed");
  if (!std::is_sorted(levels.begin(), levels.end(), std::less_equal<>()))
    arguments.refuse("every level must be above the one before");
  return std::make_unique<Levels>(std::move(levels));
}

}  // namespace esp::sync
