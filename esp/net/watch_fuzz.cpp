// What a watch takes from the Hub: raw bytes through the frame reader, and bodies through every decoder. Whatever
// decodes must encode to the same bytes again: one meaning, one form.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace {

using namespace esp::net;

std::string again(Kind kind, std::string_view body) {
  switch (kind) {
    case Kind::lost:
      return encode_loss(decode_loss(body));
    case Kind::left:
    case Kind::query:
      return encode_number(static_cast<uint64_t>(decode_rank(body)));
    case Kind::abort:
    case Kind::aborted:
      return encode_abort(decode_abort(body));
    case Kind::ask:
      return encode_ask(decode_ask(body));
    case Kind::question:
    case Kind::standing:
    case Kind::answer:
      return encode_report(decode_report(body));
    case Kind::join:
      return encode_join(decode_join(body));
    case Kind::table:
      return encode_table(decode_table(body));
    case Kind::welcome:
      return encode_welcome(decode_welcome(body));
    case Kind::refused:
      return encode_refusal(decode_refusal(body));
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
    if (again(static_cast<Kind>(data[0]), body) != body) std::abort();
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
