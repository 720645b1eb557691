#include "esp/kernel/quantize.h"

#include <limits>

#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

using Encoded = std::vector<uint8_t>;

// A misaligned output buffer, filled with values that must be overwritten. The 64 guard bytes after its end must not
// change.
Encoded room_for(int64_t count, const BlockFormat& format) {
  return Encoded(1 + quantized_bytes(count, format) + 64, 0xa5);
}

Encoded encoded_by_ref(const Array& x, const BlockFormat& format) {
  Encoded made = room_for(x.count(), format);
  ref::quantize(made.data() + 1, x.data(), x.count(), x.dtype(), format);
  return made;
}

float scale_at(const Encoded& encoded, int64_t block) {
  float scale;
  std::memcpy(&scale, encoded.data() + 1 + 4 * block, sizeof scale);
  return scale;
}

// Blocks of different magnitudes: among them a block of zeros, one of subnormals, and one with a NaN or an infinity.
Array mixed(int64_t count, DType dtype, int64_t block) {
  Array x = Array::random(count, dtype, 5);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t b = i / block;
    if (b % 5 == 1) x.set(i, x[i] * 1e-3);
    if (b % 5 == 2) x.set(i, 0);
    if (b % 5 == 3) x.set(i, x[i] * (dtype == DType::f16 ? 0x1p-22 : 0x1p-146));
    if (b % 5 == 4 && i % block == block / 2)
      x.set(i, b % 2 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN());
  }
  return x;
}

TEST(Quantize, MatchesRefBitForBit) {
  const Threads pair(2);
  for_each_target([&](const std::string& target) {
    for (DType dtype : kFloating)
      for (int bits : {8, 4})
        for (int64_t block : {1, 7, 64, 1500, 2048})
          for (int64_t count : {0, 1, 2, 63, 2048, 2049, 33333}) {
            const BlockFormat format{bits, block};
            const std::string where =
                fmt::format("{} {} int{} block {} count {}", target, name_of(dtype), bits, block, count);
            const Array x = mixed(count, dtype, block);
            const Encoded want = encoded_by_ref(x, format);
            Encoded got = room_for(count, format);
            quantize(got.data() + 1, x.data(), count, dtype, format, pair);
            ASSERT_EQ(got, want) << where;

            Array back(count, dtype), back_want = back;
            dequantize(back.data(), got.data() + 1, count, dtype, format, pair);
            ref::dequantize(back_want.data(), want.data() + 1, count, dtype, format);
            ASSERT_TRUE(back.same_bits(back_want)) << where;

            Array sums = Array::random(count, DType::f32, 9), sums_want = sums;
            dequantize_add(static_cast<float*>(sums.data()), got.data() + 1, count, format, pair);
            ref::dequantize_add(static_cast<float*>(sums_want.data()), want.data() + 1, count, format);
            ASSERT_TRUE(sums.same_bits(sums_want)) << where;
          }
  });
}

TEST(Quantize, SizeMatchesFormula) {
  EXPECT_EQ(quantized_bytes(0, {8, 2048}), 0u);
  EXPECT_EQ(quantized_bytes(1, {8, 2048}), 1u + 4);
  EXPECT_EQ(quantized_bytes(2048, {8, 2048}), 2048u + 4);
  EXPECT_EQ(quantized_bytes(2049, {8, 2048}), 2049u + 8);
  EXPECT_EQ(quantized_bytes(2049, {4, 2048}), 1024u + 1 + 8);
  EXPECT_EQ(quantized_bytes(20, {4, 7}), 4u + 4 + 3 + 12);  // three blocks, of 7, 7 and 6 values
  EXPECT_EQ(quantized_bytes(1'000'000, {8, 2048}), 1'000'000u + 4 * 489);
}

TEST(Quantize, ErrorIsAtMostHalfAStep) {
  const Threads alone(1);
  for (DType dtype : {DType::f64, DType::f32})
    for (int bits : {8, 4}) {
      const BlockFormat format{bits, 100};
      const Array x = Array::random(10'000, dtype, 3, 7.5);
      const Encoded encoded = encoded_by_ref(x, format);
      Array back(x.count(), dtype);
      dequantize(back.data(), encoded.data() + 1, x.count(), dtype, format, alone);
      double worst = 0;
      for (int64_t i = 0; i < x.count(); ++i) {
        const double step = static_cast<double>(scale_at(encoded, i / 100));
        ASSERT_LE(std::abs(back[i] - x[i]), step / 2 * (1 + 1e-5)) << i;
        worst = std::max(worst, std::abs(back[i] - x[i]) / step);
      }
      EXPECT_GT(worst, 0.45);  // the error comes close to the bound of half a step: values are really quantised
    }
}

TEST(Quantize, RoundsHalvesToEvenAndRestoresLargestValue) {
  const Threads alone(1);
  Array x(8, DType::f32), y = x;
  const double values[] = {127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127}, want[] = {127, 0, 2, 2, 0, -2, -2, -127};
  x.fill([&](int64_t i) { return values[i]; });
  Encoded encoded = room_for(8, {8, 8});
  quantize(encoded.data() + 1, x.data(), 8, DType::f32, {8, 8}, alone);
  EXPECT_EQ(scale_at(encoded, 0), 1.0f);
  dequantize(y.data(), encoded.data() + 1, 8, DType::f32, {8, 8}, alone);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(y[i], want[i]) << i;

  const double small[] = {7, 0.5, 1.5, 2.5, -0.5, -6.5, -5.5, -7}, small_want[] = {7, 0, 2, 2, 0, -6, -6, -7};
  x.fill([&](int64_t i) { return small[i]; });
  quantize(encoded.data() + 1, x.data(), 8, DType::f32, {4, 8}, alone);
  dequantize(y.data(), encoded.data() + 1, 8, DType::f32, {4, 8}, alone);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(y[i], small_want[i]) << i;
}

TEST(Quantize, NonFiniteValueInvalidatesOnlyItsBlock) {
  const Threads pair(2);
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType dtype : kFloating)
    for (int bits : {8, 4})
      for (double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 1e39}) {
        if (bad == 1e39 && dtype != DType::f64) continue;  // 1e39 is too large for fp32, so only f64 can hold it
        const BlockFormat format{bits, 16};
        Array x = Array::random(48, dtype, 3), y(48, dtype);
        x.set(20, bad);
        Encoded encoded = room_for(48, format);
        quantize(encoded.data() + 1, x.data(), 48, dtype, format, pair);
        EXPECT_FALSE(std::isfinite(scale_at(encoded, 1)));
        dequantize(y.data(), encoded.data() + 1, 48, dtype, format, pair);
        for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(std::isfinite(y[i]), i < 16 || i >= 32) << i;
        Array sums(48, DType::f32);
        dequantize_add(static_cast<float*>(sums.data()), encoded.data() + 1, 48, format, pair);
        for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(std::isfinite(sums[i]), i < 16 || i >= 32) << i;
      }
}

TEST(Quantize, ZerosHaveScaleZero) {
  const Threads alone(1);
  Array x(10, DType::bf16), y = x;
  x.fill([](int64_t i) { return i % 2 ? -0.0 : 0.0; });
  for (int bits : {8, 4}) {
    Encoded encoded = room_for(10, {bits, 2048});
    quantize(encoded.data() + 1, x.data(), 10, DType::bf16, {bits, 2048}, alone);
    EXPECT_EQ(scale_at(encoded, 0), 0.0f);
    dequantize(y.data(), encoded.data() + 1, 10, DType::bf16, {bits, 2048}, alone);
    for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(y[i], 0) << i;
  }
}

}  // namespace
}  // namespace esp::kernel
