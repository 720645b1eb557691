// Fuzz target: any 64 bytes either decode to a header that encodes to the same bytes again, or are rejected as corrupt.
#include <cstring>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/tcp/crc32c.h"
#include "esp/net/tcp/frame.h"

using namespace esp::net;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::byte wire[kFrameHeaderBytes] = {};
  std::memcpy(wire, data, std::min(size, sizeof wire));
  // The fuzzer cannot guess checksums: for an input longer than a header, the checksum is corrected here.
  if (size > sizeof wire) encode_u32(crc32c(0, wire, 60), wire + 60);
  try {
    FrameHeader header = decode_frame(ConstFrameBytes(wire), 1);
    std::byte again[kFrameHeaderBytes];
    encode_frame(header, again);
    ESP_CHECK(std::memcmp(wire, again, sizeof wire) == 0, "the header does not round-trip");
    ESP_CHECK(header.message_bytes <= kMaxMessageBytes && header.stripe < header.num_stripes,
              "a header field is out of range");
    size_t covered = 0;
    for (int k = 0; k < num_stripes(header.message_bytes, header.num_stripes); ++k)
      covered += stripe_of(header.message_bytes, num_stripes(header.message_bytes, header.num_stripes), k).bytes;
    ESP_CHECK(covered == header.message_bytes, "stripes do not cover the message");
  } catch (const esp::CommError& error) {
    ESP_CHECK(error.kind() == esp::CommError::Kind::corrupt, "{}", error.what());
  }
  return 0;
}
