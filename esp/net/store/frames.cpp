#include "esp/net/store/frames.h"

#include <fmt/format.h>

#include "esp/net/bytes.h"
#include "esp/net/tcp/crc32c.h"

namespace esp::net {
namespace {

constexpr size_t kCrcEnd = 8;  // the CRC covers the header from here on, and the length by way of the body

uint32_t crc_of(std::string_view header_rest, std::string_view body) {
  uint32_t crc = crc32c(0, header_rest.data(), header_rest.size());
  return crc32c(crc, body.data(), body.size());
}

[[noreturn]] void corrupt(const std::string& what) {
  throw CommError(CommError::Kind::corrupt, -1, what);
}

}  // namespace

std::string FrameWriter::encode(Kind kind, std::string_view body) {
  std::string rest = ByteWriter().put(next_++).put(static_cast<uint8_t>(kind)).put(uint8_t{0}).put(uint16_t{0}).take();
  return ByteWriter().put(static_cast<uint32_t>(body.size())).put(crc_of(rest, body)).raw(rest).raw(body).take();
}

std::optional<Frame> FrameReader::next() {
  std::string_view bytes = std::string_view(buffer_).substr(start_);
  if (bytes.size() < kStoreHeaderBytes) return {};
  ByteReader reader(bytes);
  auto body_bytes = reader.get<uint32_t>();
  // Before anything is kept for it: a length is believed only inside its limit.
  if (body_bytes > max_body_bytes_)
    corrupt(fmt::format("a frame of {} bytes; at most {} are taken", body_bytes, max_body_bytes_));
  if (bytes.size() < kStoreHeaderBytes + body_bytes) return {};
  auto crc = reader.get<uint32_t>();
  Frame frame;
  frame.sequence = reader.get<uint64_t>();
  frame.kind = static_cast<Kind>(reader.get<uint8_t>());
  bool zeros = reader.get<uint8_t>() == 0;
  zeros &= reader.get<uint16_t>() == 0;
  std::string_view body = reader.raw(body_bytes);
  if (crc != crc_of(bytes.substr(kCrcEnd, kStoreHeaderBytes - kCrcEnd), body)) corrupt("a frame with a wrong checksum");
  if (frame.sequence != expected_ || !zeros)
    corrupt(fmt::format("frame {} where frame {} was due", frame.sequence, expected_));
  ++expected_;
  frame.body = body;
  start_ += kStoreHeaderBytes + body_bytes;
  if (start_ == buffer_.size() || start_ >= (size_t{64} << 10)) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  return frame;
}

}  // namespace esp::net
