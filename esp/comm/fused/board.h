// The board: what the ranks of one host write for each other to read, laid out in one shared segment.
//
// Every rank owns one page of lines and its slots; it alone writes them, everybody reads them. A flag is a counter that
// only grows (compared modulo 2^32) and is stored last, with release order: whoever sees it sees what it announces.
// Calls' headers take turns in a ring, which is as long as a rank may be ahead of the others (posted.cpp). Most calls
// wait for everybody: a rank that entered the next of those has finished the one before, hence what only they use comes
// in pairs. `step` counts the steps of pipelines.
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

// Where a buffer of a call lies: in registered memory (the same segment on every member), or at a private address.
struct Place {
  uint64_t segment = 0;  // 0: private
  uint64_t at = 0;       // offset in the member's part of the segment, or the address
};

struct BoardPage {
  struct alignas(64) Header {
    Flag call{0};
    uint32_t choice = 0;  // rank 0's, in large calls: how to put blocks down
    net::Tag tag;
  };
  struct alignas(64) Places {
    Place in, out;
    uint32_t overlapping = 0;  // in and out share memory in a way that only staging can serve
    int core = 0;              // where its rank ran when it entered the call
  };
  struct alignas(64) Line {
    Flag value{0};
  };

  static constexpr uint32_t kCalls = 32;  // headers in rotation
  Header header[kCalls];
  Places places[2];
  Line step;
  Line sleepers;  // how many peers sleep on a flag of this page
  Line echo;      // the hand-over probe
};

// What a rank sends to and expects from one peer in an irregular exchange, in bytes.
struct Parcel {
  uint64_t send_bytes = 0, send_at = 0, receive_bytes = 0;
};

// Offsets inside what one rank owns, the same on every rank: the page, posted data by call, parcels by peer for both
// parities, the small slots of both parities, then the slots of pipelines: blocks put down for peers, and reduced
// pieces.
struct BoardLayout {
  static constexpr size_t kPage = 4096;
  static constexpr size_t kDepth = 4;  // slots in rotation: at least twice the lag of a pipeline
  static constexpr size_t kSmallBytes = 32 << 10, kPostBytes = 2 << 10;

  explicit BoardLayout(int size);

  size_t num_ranks;
  size_t block_bytes;  // one slot
  size_t piece_bytes;  // one rank's share of a reduced block
  size_t rank_bytes;   // all that one rank owns
  size_t bytes() const { return rank_bytes * num_ranks; }

  static size_t post_at(uint32_t call) { return kPage + call % BoardPage::kCalls * kPostBytes; }
  size_t parcels_at(uint32_t parity) const { return kPage + BoardPage::kCalls * kPostBytes + parity * parcels_bytes(); }
  size_t small_at(uint32_t parity) const { return parcels_at(2) + parity * kSmallBytes; }
  size_t block_at(size_t slot) const { return small_at(2) + slot * block_bytes; }
  size_t piece_at(size_t slot) const { return block_at(kDepth) + slot * piece_bytes; }

 private:
  size_t parcels_bytes() const { return (num_ranks * sizeof(Parcel) + kPage - 1) / kPage * kPage; }
};

}  // namespace esp::comm
