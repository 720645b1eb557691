// What workers and servers say to each other: a header of 56 bytes, little-endian, and for some a payload.
//
//   push    worker → server   the gradients of one partition, as they travel
//   apply   worker → server   every partition of step `step` has left: apply them, gradients times `factor`, rate `lr`
//                             (async, ssp); with kSkip: leave them
//   pull    worker → server   the values for step `step`, once they may be had (async, ssp)
//   values  server → worker   one partition: its values at version `step`, or its sum where workers step
//   pushed  server → worker   a push has arrived: its bytes are no longer under way
//   done    either way        nothing more will come
//
// `stop` is the step before which the sender knows that all stop; 0: it knows of none. Header:
//   magic u32 · kind u8 · flags u8 · 0 u16 · partition u32 · 0 u32 · step i64 · stop i64 · lr f64 · factor f64 · bytes
//   u64
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace esp::sync {

enum class MessageKind : uint8_t { push, apply, pull, values, pushed, done };

struct Message {
  static constexpr uint8_t kSkip = 1;       // apply: the gradients were not finite
  static constexpr uint8_t kWantsStop = 2;  // pull: somebody asked this worker to stop
  static constexpr uint8_t kNow = 4;        // pull: whatever the clocks say

  MessageKind kind = MessageKind::done;
  uint8_t flags = 0;
  uint32_t partition = 0;
  int64_t step = 0, stop = 0;
  double lr = 0, factor = 1;
  uint64_t bytes = 0;  // of the payload
  bool operator==(const Message&) const = default;
};

inline constexpr size_t kMessageBytes = 56;
using MessageBytes = std::array<std::byte, kMessageBytes>;

MessageBytes encode(const Message& message);
Message decode_message(std::span<const std::byte> bytes);  // CommError (corrupt) for what `encode` never makes

}  // namespace esp::sync
