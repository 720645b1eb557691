#include "esp/net/tcp/frame.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/tcp/crc32c.h"

namespace esp::net {
namespace {

constexpr uint32_t kMagic = 0x46505345u;  // "ESPF"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kChecked = 1;
constexpr size_t kPage = 4096;

template <typename Word>
void put(std::byte* wire, Word value) {
  for (size_t i = 0; i < sizeof(Word); ++i) wire[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename Word>
Word take(const std::byte* wire) {
  Word value = 0;
  for (size_t i = 0; i < sizeof(Word); ++i) value = static_cast<Word>(value | static_cast<Word>(wire[i]) << (8 * i));
  return value;
}

void require(bool holds, int peer, const char* what, uint64_t given) {
  if (holds) return;
  throw CommError(CommError::Kind::corrupt, peer,
                  fmt::format("rank {} sent a damaged frame: its {} is {:#x}", peer, what, given));
}

}  // namespace

void encode_u32(uint32_t value, std::byte* wire) {
  put(wire, value);
}

uint32_t decode_u32(const std::byte* wire) {
  return take<uint32_t>(wire);
}

void encode_frame(const FrameHeader& header, FrameBytes wire) {
  std::byte* at = wire.data();
  put<uint32_t>(at, kMagic);
  put<uint8_t>(at + 4, kVersion);
  put<uint8_t>(at + 5, header.checked ? kChecked : 0);
  put<uint8_t>(at + 6, header.stripe);
  put<uint8_t>(at + 7, header.num_stripes);
  put<uint64_t>(at + 8, header.tag.sequence);
  put<uint64_t>(at + 16, header.tag.what);
  put<uint64_t>(at + 24, header.tag.count);
  put<uint32_t>(at + 32, header.tag.step);
  put<uint32_t>(at + 36, header.tag.schedule);
  put<uint64_t>(at + 40, header.message_bytes);
  put<uint64_t>(at + 48, header.number);
  put<uint32_t>(at + 56, 0);
  put<uint32_t>(at + 60, crc32c(0, at, 60));
}

FrameHeader decode_frame(ConstFrameBytes wire, int peer) {
  const std::byte* at = wire.data();
  require(take<uint32_t>(at) == kMagic, peer, "magic", take<uint32_t>(at));
  require(take<uint32_t>(at + 60) == crc32c(0, at, 60), peer, "header checksum", take<uint32_t>(at + 60));
  require(take<uint8_t>(at + 4) == kVersion, peer, "version", take<uint8_t>(at + 4));
  require((take<uint8_t>(at + 5) & ~kChecked) == 0, peer, "flags", take<uint8_t>(at + 5));
  require(take<uint32_t>(at + 56) == 0, peer, "reserved field", take<uint32_t>(at + 56));
  FrameHeader header;
  header.checked = take<uint8_t>(at + 5) & kChecked;
  header.stripe = take<uint8_t>(at + 6);
  header.num_stripes = take<uint8_t>(at + 7);
  require(header.num_stripes >= 1 && header.num_stripes <= kMaxStripes, peer, "number of stripes", header.num_stripes);
  require(header.stripe < header.num_stripes, peer, "stripe", header.stripe);
  header.tag = {take<uint64_t>(at + 8), take<uint64_t>(at + 16), take<uint64_t>(at + 24), take<uint32_t>(at + 32),
                take<uint32_t>(at + 36)};
  header.message_bytes = take<uint64_t>(at + 40);
  require(header.message_bytes <= kMaxMessageBytes, peer, "message length", header.message_bytes);
  header.number = take<uint64_t>(at + 48);
  return header;
}

int num_stripes(size_t message_bytes, int num_streams) {
  return message_bytes < kStripeFromBytes ? 1 : std::clamp(num_streams, 1, kMaxStripes);
}

Stripe stripe_of(size_t message_bytes, int num_stripes, int stripe) {
  size_t count = static_cast<size_t>(num_stripes), k = static_cast<size_t>(stripe);
  if (count == 1) return {0, message_bytes};
  // rounded down to whole pages, so that the last stripe is never empty
  size_t each = message_bytes / count / kPage * kPage;
  return {each * k, k + 1 == count ? message_bytes - each * k : each};
}

}  // namespace esp::net
