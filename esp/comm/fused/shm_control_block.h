// The shared-memory control block of the ranks of one host: flags, call headers and slots in one shared segment.
//
// Each rank owns one page of cache lines and its slots. Only the owner writes them; all ranks read them. A flag is a
// counter that only grows (compared modulo 2^32) and is stored last, with release order, so a reader of the flag sees
// the data it announces. Call headers rotate in a ring as long as the maximum lead of a rank (eager.cpp). In most calls
// all ranks wait for all; a rank that enters the next such call has finished the previous one, so their buffers are
// double-buffered. `step` counts pipeline steps.
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

// Address of a call's buffer: in registered memory (the same segment on every member), or private.
struct BufferAddress {
  uint64_t segment = 0;  // 0: private
  uint64_t at = 0;       // offset in the member's part of the segment, or an address
};

struct ShmControlPage {
  struct alignas(64) Header {
    Flag call{0};
    uint32_t choice = 0;  // rank 0, in large calls: the copy policy
    net::Tag tag;
  };
  struct alignas(64) BufferAddresses {
    BufferAddress in, out;
    uint32_t overlapping = 0;  // in and out overlap so that the call must be staged
    int core = 0;              // core its rank ran on when it entered the call
  };
  struct alignas(64) CacheLine {
    Flag value{0};
  };

  static constexpr uint32_t kCalls = 32;  // headers in rotation
  Header header[kCalls];
  BufferAddresses places[2];
  CacheLine step;
  CacheLine sleepers;  // number of peers asleep on a flag of this page
  CacheLine echo;      // core-to-core latency probe
};

// Bytes a rank sends to, and expects from, one peer in an irregular exchange.
struct AllToAllSegment {
  uint64_t send_bytes = 0, send_at = 0, receive_bytes = 0;
};

// Offsets within one rank's area, equal on all ranks: the page, eager data by call, segments by peer (two parities),
// small slots (two parities), then pipeline slots: staged blocks, and reduced pieces.
struct ShmLayout {
  static constexpr size_t kPage = 4096;
  static constexpr size_t kDepth = 4;  // slots in rotation: at least twice the lag of a pipeline
  static constexpr size_t kSmallBytes = 32 << 10, kEagerBytes = 2 << 10;

  explicit ShmLayout(int size);

  size_t num_ranks;
  size_t block_bytes;  // one slot
  size_t piece_bytes;  // one rank's share of a reduced block
  size_t rank_bytes;   // all that one rank owns
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
