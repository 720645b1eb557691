#include "esp/net/tcp/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/net/tcp/crc32c.h"

namespace esp::net {
namespace {

using Wire = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader example() {
  return {{0x0102030405060708, 0x1112131415161718, 0x2122232425262728, 0x31323334, 0x41424344},
          0x5152535455,
          0x61,
          1,
          2,
          true};
}

TEST(Crc32c, MatchesPublishedCrcVectors) {
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(0, std::string(32, '\xff').data(), 32), 0x62a8ab43u);
}

TEST(Crc32c, MatchesReferenceAtEverySizeAndSplit) {
  std::vector<unsigned char> data(40000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(random_bits(7, 1, i));
  for (size_t bytes : {0, 1, 7, 8, 63, 4095, 12287, 12288, 12289, 24576, 39999}) {
    uint32_t expected = crc32c_reference(0, data.data() + 1, bytes);
    EXPECT_EQ(crc32c(0, data.data() + 1, bytes), expected) << bytes;
    size_t cut = bytes / 3;
    EXPECT_EQ(crc32c(crc32c(0, data.data() + 1, cut), data.data() + 1 + cut, bytes - cut), expected) << bytes;
  }
}

TEST(TcpFrame, MatchesDocumentedLayout) {
  Wire wire;
  encode_frame(example(), wire);
  const unsigned char expected[] = {'E',  'S',  'P',  'F',  1,    1,    1,    2,    8,    7,    6,    5,
                                    4,    3,    2,    1,    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
                                    0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31,
                                    0x44, 0x43, 0x42, 0x41, 0x55, 0x54, 0x53, 0x52, 0x51, 0,    0,    0,
                                    0x61, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0};
  static_assert(sizeof expected == 60);
  for (size_t i = 0; i < sizeof expected; ++i) EXPECT_EQ(static_cast<unsigned char>(wire[i]), expected[i]) << i;
  EXPECT_EQ(decode_u32(&wire[60]), crc32c_reference(0, expected, 60));
}

TEST(TcpFrame, RoundTripsHeader) {
  Wire wire;
  FrameHeader header = example();
  header.message_bytes = kMaxMessageBytes;
  encode_frame(header, wire);
  EXPECT_EQ(decode_frame(wire, 3), header);
}

TEST(TcpFrame, DetectsEveryFlippedBit) {
  Wire wire;
  FrameHeader header = example();
  header.message_bytes = 1000;
  encode_frame(header, wire);
  for (size_t bit = 0; bit < 8 * wire.size(); ++bit) {
    Wire damaged = wire;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    try {
      decode_frame(damaged, 3);
      FAIL() << "bit " << bit << " was flipped and not detected";
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::corrupt);
      EXPECT_EQ(error.peer(), 3);
    }
  }
}

TEST(TcpFrame, RejectsInvalidLengthsAndStripes) {
  Wire wire;
  for (auto spoil :
       {+[](FrameHeader& h) { h.message_bytes = kMaxMessageBytes + 1; }, +[](FrameHeader& h) { h.num_stripes = 0; },
        +[](FrameHeader& h) { h.stripe = h.num_stripes; }, +[](FrameHeader& h) { h.num_stripes = kMaxStripes + 1; }}) {
    FrameHeader header = example();
    header.message_bytes = 10;
    spoil(header);
    encode_frame(header, wire);
    EXPECT_THROW(decode_frame(wire, 0), CommError);
  }
}

TEST(TcpStripes, CoverMessageOnceInWholePages) {
  for (size_t bytes : {size_t{0}, size_t{1}, kStripeFromBytes - 1, kStripeFromBytes, kStripeFromBytes + 16 * 4096 - 1,
                       size_t{16} << 20, (size_t{64} << 20) + 13})
    for (int streams : {1, 2, 3, 7, 16, 40}) {
      int stripes = num_stripes(bytes, streams);
      EXPECT_EQ(stripes, bytes < kStripeFromBytes ? 1 : std::min(streams, kMaxStripes));
      size_t next = 0;
      for (int k = 0; k < stripes; ++k) {
        Stripe stripe = stripe_of(bytes, stripes, k);
        EXPECT_EQ(stripe.offset, next);
        EXPECT_TRUE(stripe.bytes > 0 || bytes == 0);
        if (k > 0) {
          EXPECT_EQ(stripe.offset % 4096, 0u);
        }
        next += stripe.bytes;
      }
      EXPECT_EQ(next, bytes);
    }
}

}  // namespace
}  // namespace esp::net
