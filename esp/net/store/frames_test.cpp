#include "esp/net/store/frames.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/net/store/messages.h"

namespace esp::net {
namespace {

TEST(Frames, ReaderDecodesFramesSplitAtAnyByte) {
  FrameWriter writer;
  std::string bytes = writer.encode(FrameKind::set, "one");
  bytes += writer.encode(FrameKind::get, "");
  bytes += writer.encode(FrameKind::value, std::string(1000, 'x'));
  for (size_t piece : {size_t{1}, size_t{7}, bytes.size()}) {
    FrameReader reader(1000);
    std::vector<Frame> frames;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      reader.append(std::string_view(bytes).substr(at, piece));
      while (auto frame = reader.next()) frames.push_back(*frame);
    }
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].body, "one");
    EXPECT_EQ(frames[1].kind, FrameKind::get);
    EXPECT_EQ(frames[2].sequence, 2u);
    EXPECT_EQ(reader.buffered(), 0u);
  }
}

TEST(Frames, DetectEveryFlippedBit) {
  FrameWriter writer;
  std::string good = writer.encode(FrameKind::set, "some body of a frame");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    FrameReader reader(64);
    reader.append(bad);
    // With a larger length field the reader waits for more bytes and then fails the CRC. It must never return a frame.
    try {
      EXPECT_FALSE(reader.next()) << "bit " << bit;
      reader.append(std::string(64, '\0'));
      reader.next();
      FAIL() << "bit " << bit;
    } catch (const CommError& error) {
      EXPECT_EQ(error.kind(), CommError::Kind::corrupt);
    }
  }
}

TEST(Frames, RejectExcessiveLengthBeforeBody) {
  FrameWriter writer;
  std::string bytes = writer.encode(FrameKind::set, std::string(65, 'x'));
  FrameReader reader(64);
  reader.append(std::string_view(bytes).substr(0, kStoreHeaderBytes));
  EXPECT_THROW(reader.next(), CommError);
}

TEST(Frames, RejectRepeatedAndMissingFrames) {
  FrameWriter writer;
  std::string first = writer.encode(FrameKind::heartbeat, "");
  std::string second = writer.encode(FrameKind::heartbeat, "");
  FrameReader repeated(64), missing(64);
  repeated.append(first + first);
  EXPECT_TRUE(repeated.next());
  EXPECT_THROW(repeated.next(), CommError);
  missing.append(second);
  EXPECT_THROW(missing.next(), CommError);
}

TEST(Messages, RoundTrip) {
  Peer peer{"host#1", "fe80::1%eth0", 4242, 77, 0xfedcba9876543210};
  JoinRequest join = decode_join_request(encode_join_request({3, 8, peer}));
  EXPECT_EQ(join.rank, 3);
  EXPECT_EQ(join.size, 8);
  EXPECT_EQ(join.peer.address, peer.address);
  EXPECT_EQ(join.peer.port, 4242);
  EXPECT_EQ(join.peer.process, peer.process);
  auto table = decode_table(encode_table({peer, peer, peer}));
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(table[2].host, "host#1");

  AbortMessage abort =
      decode_abort(encode_abort({9, {1, 4}, CommError(CommError::Kind::mismatch, 4, "rank 4 called gather")}));
  EXPECT_EQ(abort.group, 9u);
  EXPECT_EQ(abort.members, (std::vector<int>{1, 4}));
  EXPECT_EQ(abort.cause.kind(), CommError::Kind::mismatch);
  EXPECT_EQ(abort.cause.peer(), 4);
  EXPECT_STREQ(abort.cause.what(), "rank 4 called gather");

  PositionReport report{5, 9, 2, {true, {11, 12, 13, 0, 14}, true}};
  PositionReport back = decode_position_report(encode_position_report(report));
  EXPECT_EQ(back.position.entered, report.position.entered);
  EXPECT_TRUE(back.position.inside);
  EXPECT_EQ(back.rank, 2);
}

TEST(Messages, RejectEveryTruncation) {
  std::string body = encode_abort({9, {1, 4}, CommError(CommError::Kind::lost, 4, "text")});
  for (size_t length = 0; length < body.size(); ++length)
    EXPECT_THROW(decode_abort(std::string_view(body).substr(0, length)), CommError) << length;
  EXPECT_THROW(decode_abort(body + "x"), CommError);
}

}  // namespace
}  // namespace esp::net
