// int8 and int4: blocks of values share a scale (kernel/quantize.h); rounding to nearest or stochastic.
#include <algorithm>

#include "esp/kernel/difference.h"
#include "esp/kernel/random_codes.h"
#include "esp/sync/compress/compressors_list.h"
#include "esp/sync/compress/scratch.h"

namespace esp::sync {
namespace {

class BlockQuantiser final : public NarrowCompressor {
 public:
  BlockQuantiser(const kernel::BlockCode& code, bool stochastic) : code_(code), stochastic_(stochastic) {}

  Guarantee guarantee(int64_t count) const override {
    const double top = code_.bits == 8 ? 127 : 7;
    const auto block = static_cast<double>(std::clamp<int64_t>(count, 1, code_.block));
    const double spread = (block - 1) / (4 * top * top);  // the largest value of a block is exact
    if (stochastic_) return {spread, {}};
    return {{}, std::max(1 - spread, 1 / block)};  // rounding to nearest never loses more than the value itself
  }

 protected:
  size_t bytes_of(int64_t count) const override { return kernel::quantized_bytes(count, code_); }
  void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey& draw,
                     const device::Stream& stream) const override {
    if (stochastic_) return kernel::quantize_stochastic(code, x, count, code_, {draw.seed, draw.own()}, stream);
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
  const kernel::BlockCode code_;
  const bool stochastic_;
};

std::unique_ptr<Compressor> make_blocks(int bits, int64_t otherwise, Arguments& arguments) {
  bool stochastic = arguments.flag("stochastic");
  const int64_t block = stochastic ? otherwise : arguments.whole("block", otherwise, 1, int64_t{1} << 24);
  if (bits == 4 && block % 2) arguments.refuse("block length: must be even for int4, because two values share a byte");
  if (!stochastic) stochastic = arguments.flag("stochastic");
  return std::make_unique<BlockQuantiser>(kernel::BlockCode{bits, block}, stochastic);
}

}  // namespace

std::unique_ptr<Compressor> make_int8(Arguments& arguments) {
  return make_blocks(8, 256, arguments);
}
std::unique_ptr<Compressor> make_int4(Arguments& arguments) {
  return make_blocks(4, 128, arguments);
}

}  // namespace esp::sync
