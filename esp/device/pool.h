// Memory for tensors, lent piece by piece and taken back: a best-fit allocator over few large segments, so that a
// training step, which asks for the same sizes in the same order every time, gets all its memory from what the first
// step left behind and the system is asked no more.
//
// Lent bytes go on the account under the category asked for; what is reserved from the system and not lent is the
// pool's overhead. Freed neighbours merge. Same requests in the same order give the same addresses. Any thread may take
// and give; a Pool outlives its pieces.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "esp/device/memory.h"

namespace esp::device {

// Where large runs of memory come from and go back to. Owned by its user's owner, outlives the Pool.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  virtual std::byte* take(size_t bytes) = 0;  // null when there is no more
  virtual void give(std::byte* data, size_t bytes) noexcept = 0;
  virtual size_t grain() const = 0;       // pieces begin at multiples of it
  virtual std::string state() const = 0;  // what is left, in words, for the error
};
SegmentSource& host_memory();  // the system's, in huge pages where it has them

class Pool {
 public:
  // One run of bytes. `refs` is its users' own count; the pool neither reads nor writes it after lending with 1.
  struct Piece {
    std::byte* data = nullptr;
    size_t bytes = 0;  // as asked for
    std::atomic<int32_t> refs{0};
    MemoryCategory category = MemoryCategory::other;
    Pool* pool = nullptr;

   private:
    friend class Pool;
    size_t room = 0;  // rounded up
    bool lent = false;
    Piece *before = nullptr, *after = nullptr;             // neighbours by address, within a segment
    Piece *previous_free = nullptr, *next_free = nullptr;  // within a bin
  };

  explicit Pool(MemoryAccount& account, MemoryTier tier = MemoryTier::device, SegmentSource& source = host_memory());
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Piece* take(size_t bytes, MemoryCategory category);  // refs = 1, 64-byte aligned; DeviceError
  void give(Piece* piece) noexcept;

  MemoryAccount& account() const { return account_; }
  uint64_t reserved_bytes() const;  // asked of the system
  uint64_t lent_bytes() const;      // rounded to the pool's grain
  void trim();                      // gives segments that are wholly free back to the system

 private:
  static constexpr int kNumBins = 160;  // four to each power of two
  struct Segment {
    std::byte* data;
    size_t bytes;
    Piece* first;
  };

  static int bin_of(size_t room);
  Piece* find(size_t room);
  Piece* add_segment(size_t room);
  void split(Piece* piece, size_t room);
  void link(Piece* piece);
  void unlink(Piece* piece);
  Piece* fresh();
  void retire(Piece* piece);

  MemoryAccount& account_;
  const MemoryTier tier_;
  SegmentSource& source_;
  mutable std::mutex mutex_;  // guards everything below
  std::vector<Segment> segments_;
  std::array<Piece*, kNumBins> bins_{};
  std::deque<Piece> headers_;  // stable addresses; never shrinks
  std::vector<Piece*> spare_headers_;
  uint64_t reserved_ = 0, lent_ = 0;
};

}  // namespace esp::device
