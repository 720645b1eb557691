#include "esp/net/store/frames.h"

#include <fmt/format.h>

#include "esp/net/bytes.h"
#include "esp/net/tcp/crc32c.h"

namespace esp::net {
namespace {

// The CRC covers the header from this offset, and the body. The size of the body must equal the length field.
constexpr size_t kCrcEnd = 8;

uint32_t crc_of(std::string_view header_rest, std::string_view body) {
  uint32_t crc = crc32c(0, header_rest.data(), header_rest.size());
  return crc32c(crc, body.data(), body.size());
}

[[noreturn]] void corrupt(const std::string& what) {
  throw CommError(CommError::Kind::corrupt, -1, what);
}

}  // namespace

std::string FrameWriter::encode(FrameKind kind, std::string_view body) {
  std::string rest = ByteWriter().put(next_++).put(static_cast<uint8_t>(kind)).put(uint8_t{0}).put(uint16_t{0}).take();
  return ByteWriter().put(static_cast<uint32_t>(body.size())).put(crc_of(rest, body)).raw(rest).raw(body).take();
}

std::optional<Frame> FrameReader::next() {
  std::string_view bytes = std::string_view(buffer_).substr(start_);
  if (bytes.size() < kStoreHeaderBytes) return {};
  ByteReader reader(bytes);
  auto body_bytes = reader.get<uint32_t>();
  // The length is checked before any memory is reserved for the body.
  if (body_bytes > max_body_bytes_)
    corrupt(fmt::format("frame: got {} bytes; expected at most {}", body_bytes, max_body_bytes_));
  if (bytes.size() < kStoreHeaderBytes + body_bytes) return {};
  auto crc = reader.get<uint32_t>();
  Frame frame;
  frame.sequence = reader.get<uint64_t>();
  frame.kind = static_cast<FrameKind>(reader.get<uint8_t>());
  bool zeros = reader.get<uint8_t>() == 0;
  zeros &= reader.get<uint16_t>() == 0;
  std::string_view body = reader.raw(body_bytes);
  if (crc != crc_of(bytes.substr(kCrcEnd, kStoreHeaderBytes - kCrcEnd), body)) corrupt("frame: the checksum is wrong");
  if (frame.sequence != expected_ || !zeros)
    corrupt(fmt::format("frame: got sequence number {}; expected {} and zero padding", frame.sequence, expected_));
  ++expected_;
  frame.body = body;
  start_ += kStoreHeaderBytes + body_bytes;
  if (2 * start_ >= buffer_.size() && (start_ == buffer_.size() || start_ >= (size_t{64} << 10))) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  return frame;
}

}  // namespace esp::net
