// Messages between workers and servers: a header of 56 bytes, little-endian. push and values have a payload.
//
//   push    worker → server   the gradients of one partition, in the wire type
//   apply   worker → server   all partitions of step `step` were sent: apply them with learning rate `lr` and gradient
//                             factor `factor` (async, ssp); with kSkip: discard them
//   pull    worker → server   requests the weights for step `step`, as soon as the mode allows (async, ssp)
//   values  server → worker   one partition: its weights at version `step`, or its sum where workers update
//   pushed  server → worker   acknowledges a push: its bytes are no longer in flight
//   done    both directions   the last message
//
// `stop` is the step before which all ranks stop, as far as the sender knows; 0: no stop. Header:
//   magic u32 · kind u8 · flags u8 · 0 u16 · partition u32 · 0 u32 · step i64 · stop i64 · lr f64 · factor f64 ·
//   bytes u64
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace esp::sync {

enum class MessageKind : uint8_t { push, apply, pull, values, pushed, done };

struct Message {
  static constexpr uint8_t kSkip = 1;  // set in apply: the gradients were not finite, so the server discards the push
  static constexpr uint8_t kStopRequested = 2;  // set in pull: the worker was asked to stop
  static constexpr uint8_t kNow = 4;  // set in pull: the server answers at once and ignores the clocks of the workers

  MessageKind kind = MessageKind::done;
  uint8_t flags = 0;
  uint32_t partition = 0;
  int64_t step = 0, stop = 0;
  double lr = 0, factor = 1;
  uint64_t bytes = 0;  // size of the payload in bytes
  bool operator==(const Message&) const = default;
};

inline constexpr size_t kMessageBytes = 56;
using MessageBytes = std::array<std::byte, kMessageBytes>;

MessageBytes encode(const Message& message);
// Throws CommError (corrupt) for bytes that `encode` cannot produce.
Message decode_message(std::span<const std::byte> bytes);

}  // namespace esp::sync
