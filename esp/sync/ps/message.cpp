#include "esp/sync/ps/message.h"

#include <bit>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

constexpr uint32_t kMagic = 0x31537045;  // the bytes "EpS1", little-endian
constexpr uint8_t kAllFlags = Message::kSkip | Message::kStopRequested | Message::kNow;

template <typename Int>
void put(std::byte*& at, Int value) {
  for (size_t i = 0; i < sizeof(Int); ++i) *at++ = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
}

template <typename Int>
Int get(const std::byte*& at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) value |= static_cast<uint64_t>(*at++) << (8 * i);
  return static_cast<Int>(value);
}

void require(bool holds, const char* what) {
  if (!holds) throw CommError(CommError::Kind::corrupt, -1, what);
}

}  // namespace

MessageBytes encode(const Message& m) {
  MessageBytes bytes;
  std::byte* at = bytes.data();
  put(at, kMagic);
  put(at, static_cast<uint8_t>(m.kind));
  put(at, m.flags);
  put(at, uint16_t{0});
  put(at, m.partition);
  put(at, uint32_t{0});
  put(at, m.step);
  put(at, m.stop);
  put(at, std::bit_cast<uint64_t>(m.lr));
  put(at, std::bit_cast<uint64_t>(m.factor));
  put(at, m.bytes);
  return bytes;
}

Message decode_message(std::span<const std::byte> bytes) {
  require(bytes.size() == kMessageBytes, "parameter server message: wrong header length");
  const std::byte* at = bytes.data();
  require(get<uint32_t>(at) == kMagic, "parameter server message: wrong magic number");
  Message m;
  const auto kind = get<uint8_t>(at);
  require(kind <= static_cast<uint8_t>(MessageKind::done), "parameter server message: unknown kind");
  m.kind = static_cast<MessageKind>(kind);
  m.flags = get<uint8_t>(at);
  const auto empty = get<uint16_t>(at);
  m.partition = get<uint32_t>(at);
  const auto also_empty = get<uint32_t>(at);
  require((m.flags & ~kAllFlags) == 0 && empty == 0 && also_empty == 0,
          "parameter server message: unknown flags or nonzero reserved fields");
  m.step = get<int64_t>(at);
  m.stop = get<int64_t>(at);
  m.lr = std::bit_cast<double>(get<uint64_t>(at));
  m.factor = std::bit_cast<double>(get<uint64_t>(at));
  m.bytes = get<uint64_t>(at);
  require(m.step >= 0 && m.stop >= 0, "parameter server message: negative step");
  const bool has_payload = m.kind == MessageKind::push || m.kind == MessageKind::values;
  require(has_payload == (m.bytes > 0) || m.kind == MessageKind::pushed,
          "parameter server message: payload size does not match the kind");
  return m;
}

}  // namespace esp::sync
