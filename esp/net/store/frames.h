// Frames: what travels on an authenticated connection to the Hub, in both directions. Pure functions over bytes.
//
//   header  20 bytes: body length 4, CRC-32C 4 (over the rest of the header and the body), sequence 8, kind 1, zeros 3
//   body    as net/store/messages.h says for the kind
//
// Sequences count up from 0 per direction. A frame that is too long, out of sequence or whose CRC does not fit throws
// CommError(corrupt); the connection must then be closed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "esp/net/store.h"

namespace esp::net {

inline constexpr size_t kStoreHeaderBytes = 20;
// The Hub takes no request longer than this; its own answers may be as long as the table of a large job.
inline constexpr size_t kMaxRequestBytes = kMaxValueBytes + kMaxKeyBytes + 64;
inline constexpr size_t kMaxAnswerBytes = size_t{32} << 20;

enum class Kind : uint8_t {
  // To the Hub, on a store connection. The sequence of the frame is the number of the request.
  set = 1,
  get,      // waits at the Hub until the key is there
  try_get,  // does not
  add,
  erase,
  cancel,  // a get or join that nobody waits for any longer
  join,    // this rank's Peer; answered with the whole table once all have joined
  roll,    // who is missing
  // From the Hub, on a store connection.
  welcome = 32,
  done,
  value,
  absent,
  refused,
  table,
  // To the Hub, on a watch connection.
  beat = 64,
  bye,
  abort,
  ask,
  standing,
  query,  // is this rank gone
  // From the Hub, on a watch connection.
  lost = 96,
  left,
  aborted,
  question,
  answer,
  bye_heard,
  closing,
};

struct Frame {
  Kind kind = Kind::beat;
  uint64_t sequence = 0;
  std::string body;
};

class FrameWriter {
 public:
  std::string encode(Kind kind, std::string_view body);
  uint64_t next_sequence() const { return next_; }

 private:
  uint64_t next_ = 0;
};

class FrameReader {
 public:
  explicit FrameReader(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  void append(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole frame, if it has arrived.
  std::optional<Frame> next();
  size_t buffered() const { return buffer_.size() - start_; }

 private:
  size_t max_body_bytes_;
  uint64_t expected_ = 0;
  std::string buffer_;
  size_t start_ = 0;  // of what is not consumed yet
};

}  // namespace esp::net
