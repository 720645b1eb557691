// Fuzzes the frames that the failure detector receives from the Hub: raw bytes through the frame reader, and frame
// bodies through every decoder. A body that decodes must encode to the same bytes again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace {

using namespace esp::net;

std::string again(FrameKind kind, std::string_view body) {
  switch (kind) {
    case FrameKind::lost:
      return encode_rank_failure(decode_rank_failure(body));
    case FrameKind::left:
    case FrameKind::query_rank:
      return encode_number(static_cast<uint64_t>(decode_rank(body)));
    case FrameKind::abort:
    case FrameKind::aborted:
      return encode_abort(decode_abort(body));
    case FrameKind::query_positions:
      return encode_position_query(decode_position_query(body));
    case FrameKind::position_query:
    case FrameKind::position_reply:
    case FrameKind::position:
      return encode_position_report(decode_position_report(body));
    case FrameKind::join:
      return encode_join_request(decode_join_request(body));
    case FrameKind::table:
      return encode_table(decode_table(body));
    case FrameKind::hub_info:
      return encode_hub_info(decode_hub_info(body));
    case FrameKind::refused:
      return encode_request_error(decode_request_error(body));
    default:
      return std::string(body);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    std::string_view body = bytes.substr(1);
    if (again(static_cast<FrameKind>(data[0]), body) != body) std::abort();
  } catch (const esp::CommError& error) {
    if (error.kind() != esp::CommError::Kind::corrupt) std::abort();
  }
  try {
    FrameReader reader(1024);
    for (size_t at = 1; at < size; at += 16) {
      reader.append(bytes.substr(at, 16));
      while (reader.next()) {
      }
    }
  } catch (const esp::CommError& error) {
    if (error.kind() != esp::CommError::Kind::corrupt) std::abort();
  }
  return 0;
}
