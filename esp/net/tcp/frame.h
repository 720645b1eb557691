// Wire format of the tcp transport: frames. Each frame is a header, the payload of one stripe, and, if payloads are
// checked, four bytes of CRC-32C over that payload. Pure functions; little-endian:
//
//    0  u32  magic "ESPF"          8  u64 tag.sequence     32  u32 tag.step        48  u64 message number
//    4  u8   version               16 u64 tag.what         36  u32 tag.schedule    56  u32 zero
//    5  u8   flags: 1 = checked    24 u64 tag.count        40  u64 message bytes   60  u32 CRC-32C of bytes 0..59
//    6  u8   stripe
//    7  u8   number of stripes
//
// Messages are numbered from 0 per group, sender and receiver. A message is sent as one frame on each of the first
// `stripes` connections. Connection 0 carries a frame of every message, so a receiver sees all messages in order there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "esp/net/transport.h"

namespace esp::net {

inline constexpr size_t kFrameHeaderBytes = 64;
inline constexpr size_t kFrameTrailerBytes = 4;
// No memory is allocated from header fields. The limit only makes a corrupt length field an error at once.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 36;
inline constexpr int kMaxStripes = 16;
inline constexpr size_t kStripeFromBytes = size_t{256} << 10;

struct FrameHeader {
  Tag tag;
  uint64_t message_bytes = 0;
  uint64_t number = 0;
  uint8_t stripe = 0;
  uint8_t num_stripes = 1;
  bool checked = false;
  bool operator==(const FrameHeader&) const = default;
};

using FrameBytes = std::span<std::byte, kFrameHeaderBytes>;
using ConstFrameBytes = std::span<const std::byte, kFrameHeaderBytes>;

void encode_frame(const FrameHeader& header, FrameBytes wire);
// Throws a CommError(corrupt) that names the invalid field and `peer`, the world rank of the sender.
FrameHeader decode_frame(ConstFrameBytes wire, int peer);

void encode_u32(uint32_t value, std::byte* wire);
uint32_t decode_u32(const std::byte* wire);

// Striping: a message of 256 KiB or more is split into one stripe per connection. Stripes are whole 4 KiB pages, except
// the last.
struct Stripe {
  size_t offset = 0, bytes = 0;
};
int num_stripes(size_t message_bytes, int num_streams);
Stripe stripe_of(size_t message_bytes, int num_stripes, int stripe);

}  // namespace esp::net
