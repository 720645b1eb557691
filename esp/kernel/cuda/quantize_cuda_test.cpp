// Encoded buffers must be bit-identical to those of the reference kernels (ref), at any address.
#include "esp/kernel/cuda/test_gpu.h"
#include "esp/kernel/quantize.h"

namespace esp::kernel {
namespace {

class QuantizeOnGpu : public GpuTest {};

TEST_F(QuantizeOnGpu, MatchesRefBitForBit) {
  for (DType dtype : kFloating)
    for (int bits : {8, 4})
      for (auto [count, block] : {std::pair<int64_t, int64_t>{1, 64}, {1000, 64}, {5001, 2048}, {77, 7}}) {
        const BlockFormat format{bits, block};
        Array x = Array::random(count, dtype, 1, 3);
        if (count > 300) {
          for (int64_t i = 64; i < 128; ++i) x.set(i, 0);
          x.set(200, std::numeric_limits<double>::infinity());
        }
        const std::string where = fmt::format("{} {} bits {}/{}", name_of(dtype), bits, count, block);
        std::vector<uint8_t> want(quantized_bytes(count, format)), got(want);
        GpuArray on_x(*this, x);
        GpuBuffer encoded(*this, got.data(), got.size(), 1);
        quantize(encoded.data(), on_x, count, dtype, format, stream);
        ref::quantize(want.data(), x.data(), count, dtype, format);
        EXPECT_TRUE(encoded.fetch(got.data())) << where;
        EXPECT_EQ(got, want) << where;
        Array y(count, dtype), sums = Array::random(count, DType::f32, 2);
        GpuArray on_y(*this, y), on_sums(*this, sums);
        dequantize(on_y, encoded.data(), count, dtype, format, stream);
        ref::dequantize(y.data(), want.data(), count, dtype, format);
        dequantize_add(static_cast<float*>(static_cast<void*>(on_sums)), encoded.data(), count, format, stream);
        ref::dequantize_add(static_cast<float*>(sums.data()), want.data(), count, format);
        expect_near(on_y.fetch(), y, 0, 0, where);
        expect_near(on_sums.fetch(), sums, 0, 0, where);
      }
}

}  // namespace
}  // namespace esp::kernel
