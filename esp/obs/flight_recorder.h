// Flight recorder: always on, keeps the last 16384 operations of a rank in 1 MiB. With a path it survives kill -9.
//
// Any thread may record, without locks or system calls, in less than 20 ns. Records of 64 bytes are stored in a ring
// buffer; old ones are overwritten. With a path the ring is a mapped file, and the operating system keeps its content
// when the process dies. flight_log.h reads it. If a thread is descheduled while it writes a record, and other threads
// fill the whole ring meanwhile, that record may mix two operations. Readers drop unfinished records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "esp/obs/flight_format.h"
#include "esp/obs/ticks.h"

namespace esp::obs {

enum class FlightKind : uint8_t { collective, send, recv, connect, lost, step, file, mark };
enum class FlightState : uint8_t { begun, ended, failed, noted };
std::string_view name_of(FlightKind kind);
std::string_view name_of(FlightState state);

// Text of up to 16 characters as two words. For names that are used often, construct it once.
struct FlightText {
  constexpr FlightText(std::string_view text) {
    for (size_t i = 0; i < text.size() && i < 16; ++i)
      words[i / 8] |= static_cast<uint64_t>(static_cast<unsigned char>(text[i])) << (i % 8 * 8);
  }
  constexpr FlightText(const char* text) : FlightText(std::string_view(text)) {}
  uint64_t words[2] = {0, 0};
};

struct FlightEvent {
  FlightKind kind = FlightKind::mark;
  FlightState state = FlightState::noted;
  FlightText text = "";
  uint64_t group = 0, sequence = 0, bytes = 0;
  int32_t peer = -1;
  uint16_t detail = 0;  // the caller defines its meaning, for example the index of an algorithm
};

struct FlightOptions {
  size_t capacity = 16384;  // rounded up to a power of two
  // Path of the file; empty: memory only. An existing file is replaced, not reused, because another process may have
  // mapped it.
  std::string path;
  int rank = -1, world = 0;
};

class FlightRecorder {
 public:
  explicit FlightRecorder(const FlightOptions& options = {});  // throws IoError if the file cannot be created
  ~FlightRecorder();                                           // keeps the file
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  void record(const FlightEvent& event) noexcept {
    const uint64_t at = header_->next.fetch_add(1, std::memory_order_relaxed);
    const uint64_t ticks = steady_ ? fast_ticks() : static_cast<uint64_t>(now_ns());
    auto& words = slots_[at & mask_].words;
    // The order of these stores matters: a reader that sees a new field also sees that the number was set to 0, and
    // then to the new number.
    words[0].store(0, std::memory_order_relaxed);
    words[1].store(ticks, std::memory_order_release);
    words[2].store(event.group, std::memory_order_release);
    words[3].store(event.sequence, std::memory_order_release);
    words[4].store(event.bytes, std::memory_order_release);
    words[5].store(static_cast<uint32_t>(event.peer) | static_cast<uint64_t>(event.kind) << 32 |
                       static_cast<uint64_t>(event.state) << 40 | static_cast<uint64_t>(event.detail) << 48,
                   std::memory_order_release);
    words[6].store(event.text.words[0], std::memory_order_release);
    words[7].store(event.text.words[1], std::memory_order_release);
    words[0].store(at + 1, std::memory_order_release);
    if (at % kRecordsPerAnchor == 0) [[unlikely]]
      drop_anchor();
  }

  // Returns a copy of the ring for flight_log.h. Records that are being written during the copy are left out.
  std::string snapshot();
  size_t bytes() const { return bytes_; }

 private:
  static constexpr uint64_t kRecordsPerAnchor = 1024;
  void drop_anchor() noexcept;

  bool steady_ = ticks_are_steady();
  size_t bytes_ = 0;
  uint64_t mask_ = 0;
  FlightHeader* header_ = nullptr;
  FlightSlot* slots_ = nullptr;
};

}  // namespace esp::obs
