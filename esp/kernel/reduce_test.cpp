// Compares the reductions of every instruction set of this machine with the reference loops (ref), bit by bit. For sum
// and product, all NaNs count as equal.
#include "esp/kernel/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/kernel/elements.h"

namespace esp::kernel {
namespace {

// A buffer whose address has only element alignment.
class Buffer {
 public:
  Buffer(size_t count, DType dtype, bool misaligned = true)
      : offset_(misaligned ? size_of(dtype) : 0), bytes_(count * size_of(dtype)), memory_(bytes_ + offset_ + 64) {}
  std::byte* data() { return memory_.data() + offset_; }
  const std::byte* data() const { return memory_.data() + offset_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t offset_, bytes_;
  std::vector<std::byte> memory_;
};

// Random values of `dtype`. Half of the elements are random bits, which for floating types include subnormals,
// infinities and NaNs. The other half are ordinary numbers of similar magnitude, so that sums are rounded. Long buffers
// repeat with a prime period to save time.
Buffer random_buffer(size_t count, DType dtype, uint64_t seed) {
  Buffer buffer(count, dtype);
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    T* values = reinterpret_cast<T*>(buffer.data());
    constexpr size_t kPeriod = 8191;
    for (size_t i = 0; i < std::min(count, kPeriod); ++i) {
      uint64_t bits = random_bits(seed, 1, i);
      if (std::is_integral_v<T> || (bits >> 63)) {
        std::memcpy(static_cast<void*>(values + i), &bits, sizeof(T));
      } else {
        values[i] = static_cast<T>(static_cast<Accumulator<T>>(random_unit(seed, 2, i) * 8 - 4));
      }
    }
    for (size_t i = kPeriod; i < count; ++i) values[i] = values[i - kPeriod];
  });
  return buffer;
}

void expect_same(const Buffer& got, const Buffer& want, size_t count, DType dtype, ReduceOp op,
                 const std::string& where) {
  if (std::memcmp(got.data(), want.data(), got.bytes()) == 0) return;
  const bool any_nan = op != ReduceOp::min && op != ReduceOp::max;
  with_element(dtype, [&]<typename T>(std::type_identity<T>) {
    for (size_t i = 0; i < count; ++i) {
      T a, b;
      std::memcpy(static_cast<void*>(&a), got.data() + i * sizeof(T), sizeof(T));
      std::memcpy(static_cast<void*>(&b), want.data() + i * sizeof(T), sizeof(T));
      auto x = static_cast<Accumulator<T>>(a), y = static_cast<Accumulator<T>>(b);
      if (std::memcmp(&a, &b, sizeof(T)) == 0 || (any_nan && x != x && y != y)) continue;
      FAIL() << where << ": element " << i << " is " << +x << ", ref has " << +y;
    }
  });
}

std::vector<size_t> interesting_counts() {
  std::vector<size_t> counts;
  for (size_t n = 0; n <= 130; ++n) counts.push_back(n);
  for (size_t n : {255u, 256u, 1000u, 1023u, 1025u, 4099u, 70001u}) counts.push_back(n);
  return counts;
}

class ReduceOnTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  static std::string where(DType dtype, ReduceOp op, size_t count, int num_sources) {
    return fmt::format("{} {} of {} {} from {}", hwy::TargetName(GetParam()), name_of(op), count, name_of(dtype),
                       num_sources);
  }
};

TEST_P(ReduceOnTarget, TwoSourcesAreBitIdenticalToRef) {
  for (DType dtype : kAllDTypes)
    for (ReduceOp op : kAllReduceOps)
      for (size_t count : interesting_counts()) {
        Buffer a = random_buffer(count, dtype, 1), b = random_buffer(count, dtype, 2);
        Buffer got(count, dtype), want(count, dtype);
        reduce(got.data(), a.data(), b.data(), count, dtype, op);
        ref::reduce(want.data(), a.data(), b.data(), count, dtype, op);
        expect_same(got, want, count, dtype, op, where(dtype, op, count, 2));
      }
}

TEST_P(ReduceOnTarget, ReducesManySourcesInOrderAndRoundsOnce) {
  for (DType dtype : kAllDTypes)
    for (ReduceOp op : kAllReduceOps)
      for (int num_sources : {1, 3, 4, 5, 8, 17})
        for (size_t count : {0u, 1u, 63u, 64u, 65u, 1000u, 20011u}) {
          std::vector<Buffer> buffers;
          std::vector<const void*> sources;
          for (int k = 0; k < num_sources; ++k) buffers.push_back(random_buffer(count, dtype, 10 + k));
          for (const Buffer& buffer : buffers) sources.push_back(buffer.data());
          Buffer got(count, dtype), want(count, dtype);
          reduce_ordered(got.data(), sources.data(), num_sources, count, dtype, op);
          ref::reduce_ordered(want.data(), sources.data(), num_sources, count, dtype, op);
          expect_same(got, want, count, dtype, op, where(dtype, op, count, num_sources));
        }
}

// Results larger than the caches use streaming stores.
TEST_P(ReduceOnTarget, LargeResultsMatchRef) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i8}) {
    size_t count = (size_t{17} << 20) / size_of(dtype) + 5;
    Buffer a = random_buffer(count, dtype, 1), b = random_buffer(count, dtype, 2), got(count, dtype), want = got;
    reduce(got.data(), a.data(), b.data(), count, dtype, ReduceOp::sum);
    ref::reduce(want.data(), a.data(), b.data(), count, dtype, ReduceOp::sum);
    expect_same(got, want, count, dtype, ReduceOp::sum, where(dtype, ReduceOp::sum, count, 2));
    reduce(a.data(), a.data(), b.data(), count, dtype, ReduceOp::sum);
    expect_same(a, want, count, dtype, ReduceOp::sum, where(dtype, ReduceOp::sum, count, 2));
  }
}

TEST_P(ReduceOnTarget, DestinationMayBeAnySource) {
  for (DType dtype : kAllDTypes)
    for (ReduceOp op : kAllReduceOps)
      for (int num_sources : {2, 5})
        for (int alias = 0; alias < num_sources; ++alias)
          for (size_t count : {7u, 129u, 4099u}) {
            std::vector<Buffer> buffers;
            std::vector<const void*> sources;
            for (int k = 0; k < num_sources; ++k) buffers.push_back(random_buffer(count, dtype, 20 + k));
            for (const Buffer& buffer : buffers) sources.push_back(buffer.data());
            Buffer want(count, dtype);
            ref::reduce_ordered(want.data(), sources.data(), num_sources, count, dtype, op);
            reduce_ordered(buffers[alias].data(), sources.data(), num_sources, count, dtype, op);
            expect_same(buffers[alias], want, count, dtype, op, where(dtype, op, count, num_sources));
          }
}

TEST_P(ReduceOnTarget, WritesOnlyCountElements) {
  for (DType dtype : kAllDTypes)
    for (size_t count : {0u, 1u, 15u, 100u}) {
      Buffer a = random_buffer(count, dtype, 1), b = random_buffer(count, dtype, 2), got(count, dtype);
      std::memset(got.data() + got.bytes(), 0x5a, 8);
      reduce(got.data(), a.data(), b.data(), count, dtype, ReduceOp::sum);
      divide(got.data(), count, dtype, 3);
      for (size_t i = 0; i < 8; ++i) EXPECT_EQ(got.data()[got.bytes() + i], std::byte{0x5a});
    }
}

TEST_P(ReduceOnTarget, DivideIsBitIdenticalToRef) {
  for (DType dtype : kAllDTypes)
    for (int divisor : {1, 2, 3, 7, 64, 300})
      for (size_t count : interesting_counts()) {
        Buffer got = random_buffer(count, dtype, 3), want = got;
        divide(got.data(), count, dtype, divisor);
        ref::divide(want.data(), count, dtype, divisor);
        expect_same(got, want, count, dtype, ReduceOp::avg, where(dtype, ReduceOp::avg, count, divisor));
      }
}

TEST_P(ReduceOnTarget, MinAndMaxPropagateNaNFromAnySource) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a = {nan, 1, nan, 2}, b = {1, nan, nan, 3}, out(4);
  for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    reduce(out.data(), a.data(), b.data(), 4, DType::f32, op);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(out[i])) << name_of(op) << " element " << i;
    EXPECT_EQ(out[3], op == ReduceOp::min ? 2 : 3);
  }
}

// With rounding to bf16 after every addition, the sum would stop growing at 256. With one rounding per call it does
// not.
TEST_P(ReduceOnTarget, BFloat16AccumulatesInFloatWithinOneCall) {
  const int num_sources = 1000;
  std::vector<BFloat16> ones(100, BFloat16(1.0f)), out(100);
  std::vector<const void*> sources(num_sources, ones.data());
  reduce_ordered(out.data(), sources.data(), num_sources, ones.size(), DType::bf16, ReduceOp::sum);
  for (BFloat16 value : out) EXPECT_EQ(static_cast<float>(value), 1000.0f);
}

// Combines all 16-bit patterns with other 16-bit patterns, so that every case of rounding occurs.
TEST_P(ReduceOnTarget, ConvertsEvery16BitPatternLikeRef) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    const size_t count = 65536;
    Buffer a(count, dtype), b(count, dtype), got(count, dtype), want(count, dtype);
    for (uint16_t shift : {0x0001, 0x0400, 0x3c00, 0x8001, 0x1234, 0x7bff}) {
      for (size_t i = 0; i < count; ++i) {
        auto x = static_cast<uint16_t>(i), y = static_cast<uint16_t>(i * 40503u + shift);
        std::memcpy(a.data() + 2 * i, &x, 2);
        std::memcpy(b.data() + 2 * i, &y, 2);
      }
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min}) {
        reduce(got.data(), a.data(), b.data(), count, dtype, op);
        ref::reduce(want.data(), a.data(), b.data(), count, dtype, op);
        expect_same(got, want, count, dtype, op, where(dtype, op, count, 2));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ReduceOnTarget, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

TEST(Reduce, RefMatchesHandComputedSum) {
  std::vector<int8_t> a = {100, -128, 5}, b = {100, -1, -7}, out(3);
  ref::reduce(out.data(), a.data(), b.data(), 3, DType::i8, ReduceOp::sum);
  EXPECT_EQ(out, (std::vector<int8_t>{-56, 127, -2}));
  ref::reduce(out.data(), a.data(), b.data(), 3, DType::i8, ReduceOp::prod);
  EXPECT_EQ(out, (std::vector<int8_t>{16, -128, -35}));
  ref::divide(a.data(), 3, DType::i8, 3);
  EXPECT_EQ(a, (std::vector<int8_t>{33, -42, 1}));
  std::vector<float> x = {1.0f, 3.0f};
  ref::divide(x.data(), 2, DType::f32, 3);
  EXPECT_EQ(x[1], 3.0f * (1.0f / 3.0f));
}

TEST(Reduce, OpNamesRoundTripAndUnknownNameErrorListsThem) {
  for (ReduceOp op : kAllReduceOps) EXPECT_EQ(parse_reduce_op(name_of(op)), op);
  EXPECT_THROW(parse_reduce_op("summ"), UsageError);
}

}  // namespace
}  // namespace esp::kernel
