// Compressors int8 and int4: blocks of values share a scale (kernel/quantize.h); rounding to nearest or stochastic.
#include <fmt/format.h>

#include <algorithm>

#include "esp/kernel/difference.h"
#include "esp/kernel/stochastic_rounding.h"
#include "esp/sync/compress/compressor_factories.h"
#include "esp/sync/compress/scratch.h"

namespace esp::sync {
namespace {

class BlockQuantiser final : public NarrowCompressor {
 public:
  BlockQuantiser(const kernel::BlockFormat& code, bool stochastic) : code_(code), stochastic_(stochastic) {}

  Guarantee guarantee(int64_t count) const override {
    const double top = code_.bits == 8 ? 127 : 7;
    const auto block = static_cast<double>(std::clamp<int64_t>(count, 1, code_.block));
    // the sum has block − 1 terms, because the largest value of a block is encoded exactly
    const double spread = (block - 1) / (4 * top * top);
    if (stochastic_) return {spread, {}};
    // 1 / block: rounding to nearest never changes a value by more than the value itself
    return {{}, std::max(1 - spread, 1 / block)};
  }

 protected:
  size_t bytes_of(int64_t count) const override { return kernel::quantized_bytes(count, code_); }
  void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey& draw,
                     const device::Stream& stream) const override {
    if (stochastic_)
      return kernel::quantize_stochastic(code, x, count, code_, {draw.seed, draw.private_stream()}, stream);
    kernel::quantize(code, x, count, DType::f32, code_, stream);
  }
  void decode_floats(float* y, WriteMode into, const std::byte* code, int64_t count,
                     const device::Stream& stream) const override {
    if (into == WriteMode::overwrite) return kernel::dequantize(y, code, count, DType::f32, code_, stream);
    if (into == WriteMode::add) return kernel::dequantize_add(y, code, count, code_, stream);
    float* values = scratch<float, BlockQuantiser>(static_cast<size_t>(count));
    kernel::dequantize(values, code, count, DType::f32, code_, stream);
    kernel::subtract(y, y, values, count, DType::f32, stream);
  }

 private:
  const kernel::BlockFormat code_;
  const bool stochastic_;
};

std::unique_ptr<Compressor> make_blocks(int bits, int64_t default_value, SpecArguments& arguments) {
  bool stochastic = arguments.flag("stochastic");
  const int64_t block = stochastic ? default_value : arguments.integer("block", default_value, 1, int64_t{1} << 24);
  if (bits == 4 && block % 2)
    arguments.fail(fmt::format("block: got {}; expected an even number, because two int4 values share a byte", block));
  if (!stochastic) stochastic = arguments.flag("stochastic");
  return std::make_unique<BlockQuantiser>(kernel::BlockFormat{bits, block}, stochastic);
}

}  // namespace

std::unique_ptr<Compressor> make_int8(SpecArguments& arguments) {
  return make_blocks(8, 256, arguments);
}
std::unique_ptr<Compressor> make_int4(SpecArguments& arguments) {
  return make_blocks(4, 128, arguments);
}

}  // namespace esp::sync
