// Caching allocator for tensors: best fit over a few large segments. A training step requests the same sizes in the
// same order every time, so after the first step it gets all its memory from the pool.
//
// The MemoryAccount counts allocated bytes by category; reserved but unallocated bytes are the pool's overhead.
// Adjacent free blocks merge. The same requests in the same order give the same addresses. Thread-safe. A MemoryPool
// outlives its blocks.
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
  virtual std::byte* take(size_t bytes) = 0;  // null if the source has no more memory
  virtual void give(std::byte* data, size_t bytes) noexcept = 0;
  virtual size_t grain() const = 0;       // blocks are aligned to this many bytes
  virtual std::string state() const = 0;  // free memory as text, for the error message
};
SegmentSource& host_memory();  // main memory, in huge pages if available

class MemoryPool {
 public:
  // One block of memory. `refs` is the reference count for the block's users (tensors); the pool sets it to 1 and does
  // not touch it afterwards.
  struct PoolBlock {
    std::byte* data = nullptr;
    size_t bytes = 0;  // size that the caller requested
    std::atomic<int32_t> refs{0};
    MemoryCategory category = MemoryCategory::other;
    MemoryPool* pool = nullptr;

   private:
    friend class MemoryPool;
    size_t capacity = 0;  // requested size rounded up to the block alignment
    bool allocated = false;
    PoolBlock *before = nullptr, *after = nullptr;             // blocks before and after this one in the segment
    PoolBlock *previous_free = nullptr, *next_free = nullptr;  // neighbours in the free list of the bin
  };

  explicit MemoryPool(MemoryAccount& account, MemoryTier tier = MemoryTier::device,
                      SegmentSource& source = host_memory());
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Returns a block of at least `bytes` bytes with refs = 1, aligned to 64 bytes. Throws DeviceError.
  PoolBlock* take(size_t bytes, MemoryCategory category);
  void give(PoolBlock* block) noexcept;

  MemoryAccount& account() const { return account_; }
  uint64_t reserved_bytes() const;   // memory taken from the source
  uint64_t allocated_bytes() const;  // sum of all allocated blocks, including rounding
  void trim();                       // returns segments without allocated blocks to the source

 private:
  static constexpr int kNumBins = 160;  // four bins per power of two
  struct PoolSegment {
    std::byte* data;
    size_t bytes;
    PoolBlock* first;
  };

  static int bin_of(size_t capacity);
  PoolBlock* find(size_t capacity);
  PoolBlock* add_segment(size_t capacity);
  void split(PoolBlock* block, size_t capacity);
  void link(PoolBlock* block);
  void unlink(PoolBlock* block);
  PoolBlock* new_header();
  void recycle_header(PoolBlock* block);

  MemoryAccount& account_;
  const MemoryTier tier_;
  SegmentSource& source_;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<PoolSegment> segments_;
  std::array<PoolBlock*, kNumBins> bins_{};
  std::deque<PoolBlock> headers_;  // a deque, so that headers keep their addresses; it never shrinks
  std::vector<PoolBlock*> spare_headers_;
  uint64_t reserved_ = 0, allocated_ = 0;
};

}  // namespace esp::device
