// Caching allocator for tensors: best fit over a few large segments. A training step requests the same sizes in the
// same order every time, so after the first step it gets all its memory from the pool.
//
// Allocated bytes are charged to the account under their category; reserved but unallocated bytes are the pool's
// overhead. Freed neighbours merge. The same requests in the same order give the same addresses. Thread-safe. A
// MemoryPool outlives its blocks.
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

// Source of large segments. Outlives the MemoryPool.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  virtual std::byte* take(size_t bytes) = 0;  // null when there is no more
  virtual void give(std::byte* data, size_t bytes) noexcept = 0;
  virtual size_t grain() const = 0;       // block alignment
  virtual std::string state() const = 0;  // what is left, for the error message
};
SegmentSource& host_memory();  // main memory, in huge pages if available

class MemoryPool {
 public:
  // One block. `refs` is the users' reference count; after allocation with refs = 1 the pool does not touch it.
  struct PoolBlock {
    std::byte* data = nullptr;
    size_t bytes = 0;  // as asked for
    std::atomic<int32_t> refs{0};
    MemoryCategory category = MemoryCategory::other;
    MemoryPool* pool = nullptr;

   private:
    friend class MemoryPool;
    size_t room = 0;  // rounded up
    bool lent = false;
    PoolBlock *before = nullptr, *after = nullptr;             // neighbours by address, within a segment
    PoolBlock *previous_free = nullptr, *next_free = nullptr;  // within a bin
  };

  explicit MemoryPool(MemoryAccount& account, MemoryTier tier = MemoryTier::device,
                      SegmentSource& source = host_memory());
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  PoolBlock* take(size_t bytes, MemoryCategory category);  // refs = 1, 64-byte aligned; DeviceError
  void give(PoolBlock* piece) noexcept;

  MemoryAccount& account() const { return account_; }
  uint64_t reserved_bytes() const;   // asked of the system
  uint64_t allocated_bytes() const;  // rounded to the pool's grain
  void trim();                       // returns entirely free segments to the source

 private:
  static constexpr int kNumBins = 160;  // four to each power of two
  struct PoolSegment {
    std::byte* data;
    size_t bytes;
    PoolBlock* first;
  };

  static int bin_of(size_t room);
  PoolBlock* find(size_t room);
  PoolBlock* add_segment(size_t room);
  void split(PoolBlock* piece, size_t room);
  void link(PoolBlock* piece);
  void unlink(PoolBlock* piece);
  PoolBlock* fresh();
  void retire(PoolBlock* piece);

  MemoryAccount& account_;
  const MemoryTier tier_;
  SegmentSource& source_;
  mutable std::mutex mutex_;  // guards everything below
  std::vector<PoolSegment> segments_;
  std::array<PoolBlock*, kNumBins> bins_{};
  std::deque<PoolBlock> headers_;  // stable addresses; never shrinks
  std::vector<PoolBlock*> spare_headers_;
  uint64_t reserved_ = 0, lent_ = 0;
};

}  // namespace esp::device
