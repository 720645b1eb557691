// How the segment of a shm transport is laid out.
//
//   doorbells  N × 64 bytes, rounded up to a page
//   cells      N × N lanes × kCells × 256 bytes: one page per lane
//   slots      N × N lanes × kCells × slot_bytes
//
// Lane (from, to) is number from·N + to. Everything starts as zeros and is touched on first use only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "esp/net/doorbell.h"
#include "esp/net/transport.h"

namespace esp::net {

inline constexpr uint64_t kCells = 16;
inline constexpr size_t kInlineBytes = 208;
inline constexpr size_t kMaxSlotBytes = size_t{64} << 10;
inline constexpr size_t kMinSlotBytes = size_t{4} << 10;
inline constexpr size_t kBulkBytes = size_t{512} << 20;

struct alignas(64) Cell {
  std::atomic<uint32_t> turn;
  uint32_t piece_bytes;
  uint64_t message_bytes;
  Tag tag;
  std::byte bytes[kInlineBytes];
};
static_assert(sizeof(Cell) == 256);

class Lanes {
 public:
  // The segment a group of this size asks for, given what shared memory has left.
  static size_t segment_bytes(int size, size_t left);
  Lanes(std::byte* segment, size_t bytes, int size);

  static size_t slot_bytes_in(size_t bytes, int size);  // of a segment of so many bytes
  size_t slot_bytes() const { return slot_bytes_; }
  Doorbell& bell(int rank) const { return reinterpret_cast<Doorbell*>(segment_)[rank]; }
  Cell* cells(int from, int to) const {
    return reinterpret_cast<Cell*>(segment_ + bell_bytes(size_)) + lane(from, to) * kCells;
  }
  std::byte* slots(int from, int to) const { return slots_ + lane(from, to) * kCells * slot_bytes_; }

 private:
  static size_t bell_bytes(size_t size);
  static size_t fixed_bytes(size_t size);
  size_t lane(int from, int to) const { return static_cast<size_t>(from) * size_ + static_cast<size_t>(to); }

  std::byte* segment_;
  size_t size_;
  std::byte* slots_;
  size_t slot_bytes_;
};

}  // namespace esp::net
