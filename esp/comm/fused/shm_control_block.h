// The shared-memory control block of the ranks of one host: flags, call headers and slots in one shared segment.
//
// Each rank owns one page of cache lines and its slots. Only the owner writes them; all ranks read them. A flag is a
// counter that only grows (compared modulo 2^32). It is stored last, with release order, so a rank that reads the flag
// also sees the data that the flag announces. Call headers form a ring buffer; its length covers the maximum lead of a
// rank (eager.cpp). In most calls all ranks wait for each other. A rank that enters a call of this kind has finished
// the previous call of this kind, so the buffers of these calls are double-buffered. `step` counts pipeline steps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "esp/net/transport.h"

namespace esp::comm {

using Flag = std::atomic<uint32_t>;
static_assert(Flag::is_always_lock_free);

inline bool reached(const Flag& flag, uint32_t value) {
  return static_cast<int32_t>(flag.load(std::memory_order_acquire) - value) >= 0;
}

// Address of a call's buffer, either in registered memory (the same segment on every member) or private.
struct BufferAddress {
  uint64_t segment = 0;  // 0: private memory
  uint64_t at = 0;       // offset in the member's part of the segment; private memory: the address itself
};

struct ShmControlPage {
  struct alignas(64) Header {
    Flag call{0};
    uint32_t choice = 0;  // flags defined in copy_policy.cpp; rank 0 sets them in large calls
    net::Tag tag;
  };
  struct alignas(64) BufferAddresses {
    BufferAddress in, out;
    uint32_t overlapping = 0;  // 1 if in and out overlap; the call must then be staged
    int core = 0;              // core on which the rank entered the call
  };
  struct alignas(64) CacheLine {
    Flag value{0};
  };

  static constexpr uint32_t kCalls = 32;  // length of the header ring
  Header header[kCalls];
  BufferAddresses addresses[2];
  CacheLine step;
  CacheLine sleepers;  // number of peers asleep on a flag of this page
  CacheLine echo;      // used by the core-to-core latency probe
};

// Bytes that a rank sends to one peer, and bytes that it expects from that peer, in all_to_all_v.
struct AllToAllSegment {
  uint64_t send_bytes = 0, send_at = 0, receive_bytes = 0;
};

// Offsets within the memory of one rank; all ranks use the same layout. In order: the control page, eager data by call,
// all-to-all segments by peer (double-buffered), small slots (double-buffered), slots for the blocks of staged calls,
// slots for reduced pieces of blocks.
struct ShmLayout {
  static constexpr size_t kPage = 4096;
  static constexpr size_t kDepth = 4;  // number of slots in rotation; at least twice the lag of a pipeline
  static constexpr size_t kSmallBytes = 32 << 10, kEagerBytes = 2 << 10;

  explicit ShmLayout(int size);

  size_t num_ranks;
  size_t block_bytes;  // size of one slot
  size_t piece_bytes;  // size of one rank's share of a reduced block
  size_t rank_bytes;   // size of all memory of one rank
  size_t bytes() const { return rank_bytes * num_ranks; }

  static size_t eager_at(uint32_t call) { return kPage + call % ShmControlPage::kCalls * kEagerBytes; }
  size_t segments_at(uint32_t parity) const {
    return kPage + ShmControlPage::kCalls * kEagerBytes + parity * segments_bytes();
  }
  size_t small_at(uint32_t parity) const { return segments_at(2) + parity * kSmallBytes; }
  size_t block_at(size_t slot) const { return small_at(2) + slot * block_bytes; }
  size_t piece_at(size_t slot) const { return block_at(kDepth) + slot * piece_bytes; }

 private:
  size_t segments_bytes() const { return (num_ranks * sizeof(AllToAllSegment) + kPage - 1) / kPage * kPage; }
};

}  // namespace esp::comm
