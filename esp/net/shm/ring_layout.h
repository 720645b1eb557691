// Memory layout of the shared segment of the shm transport.
//
//   events     N × 64 bytes, rounded up to a page (one FutexEvent per rank)
//   cells      N × N lanes × kCells × 256 bytes: one page per lane
//   slots      N × N lanes × kCells × slot_bytes
//
// A lane is the ring from one rank to another; lane (from, to) has number from·N + to. All memory starts as zeros and
// is touched only on first use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "esp/net/futex_event.h"
#include "esp/net/transport.h"

namespace esp::net {

inline constexpr uint64_t kCells = 16;
inline constexpr size_t kInlineBytes = 208;
inline constexpr size_t kMaxSlotBytes = size_t{64} << 10;
inline constexpr size_t kMinSlotBytes = size_t{4} << 10;
inline constexpr size_t kBulkBytes = size_t{512} << 20;

struct alignas(64) ShmCell {
  std::atomic<uint32_t> turn;
  uint32_t piece_bytes;
  uint64_t message_bytes;
  Tag tag;
  std::byte bytes[kInlineBytes];
};
static_assert(sizeof(ShmCell) == 256);

class ShmRingLayout {
 public:
  // Segment size in bytes for a group of `size` members, if the shared-memory file system has `left` free bytes.
  static size_t segment_bytes(int size, size_t left);
  ShmRingLayout(std::byte* segment, size_t bytes, int size);

  static size_t slot_bytes_in(size_t bytes, int size);  // slot size of a segment of `bytes` bytes
  size_t slot_bytes() const { return slot_bytes_; }
  FutexEvent& event(int rank) const { return reinterpret_cast<FutexEvent*>(segment_)[rank]; }
  ShmCell* cells(int from, int to) const {
    return reinterpret_cast<ShmCell*>(segment_ + event_bytes(size_)) + lane(from, to) * kCells;
  }
  std::byte* slots(int from, int to) const { return slots_ + lane(from, to) * kCells * slot_bytes_; }

 private:
  static size_t event_bytes(size_t size);
  static size_t fixed_bytes(size_t size);
  size_t lane(int from, int to) const { return static_cast<size_t>(from) * size_ + static_cast<size_t>(to); }

  std::byte* segment_;
  size_t size_;
  std::byte* slots_;
  size_t slot_bytes_;
};

}  // namespace esp::net
