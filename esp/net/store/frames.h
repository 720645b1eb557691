// Frames of authenticated connections to the Hub, in both directions. Pure functions over bytes.
//
//   header  20 bytes: body length 4, CRC-32C 4 (over the rest of the header and the body), sequence 8, kind 1, zeros 3
//   body    defined per kind in net/store/messages.h
//
// Sequence numbers count up from 0 per direction. A frame that is too long, out of sequence or has a wrong CRC throws
// CommError(corrupt); the connection must then be closed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "esp/net/store.h"

namespace esp::net {

inline constexpr size_t kStoreHeaderBytes = 20;
// Maximum size of a request that the Hub accepts. A reply of the Hub may be larger: it may contain the peer table of a
// large job.
inline constexpr size_t kMaxRequestBytes = kMaxValueBytes + kMaxKeyBytes + 64;
inline constexpr size_t kMaxAnswerBytes = size_t{32} << 20;

enum class FrameKind : uint8_t {
  // Sent to the Hub on a store connection. The frame's sequence number is the request number.
  set = 1,
  get,      // waits at the Hub until the key exists
  try_get,  // like get, but replies not_found at once if the key does not exist
  add,
  erase,
  cancel,        // cancels a pending get or join
  join,          // sends this rank's Peer; the reply is the whole table once all ranks have joined
  list_missing,  // the reply names the ranks that have not joined
  // Sent by the Hub on a store connection.
  hub_info = 32,
  done,
  value,
  not_found,
  refused,
  table,
  // Sent to the Hub on a failure detector connection.
  heartbeat = 64,
  bye,
  abort,
  query_positions,
  position_reply,
  query_rank,  // asks whether a rank is lost or has left
  // Sent by the Hub on a failure detector connection.
  lost = 96,
  left,
  aborted,
  position_query,
  position,
  bye_ack,
  hub_closing,
};

struct Frame {
  FrameKind kind = FrameKind::heartbeat;
  uint64_t sequence = 0;
  std::string body;
};

class FrameWriter {
 public:
  std::string encode(FrameKind kind, std::string_view body);
  uint64_t next_sequence() const { return next_; }

 private:
  uint64_t next_ = 0;
};

class FrameReader {
 public:
  explicit FrameReader(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  void append(std::string_view bytes) { buffer_.append(bytes); }
  // Returns the next frame once all its bytes have arrived.
  std::optional<Frame> next();
  size_t buffered() const { return buffer_.size() - start_; }

 private:
  size_t max_body_bytes_;
  uint64_t expected_ = 0;
  std::string buffer_;
  size_t start_ = 0;  // start of the unconsumed bytes
};

}  // namespace esp::net
