// Format of the flight recorder, in memory and in its file: one header page, then `capacity` records of 64 bytes, in
// the machine's byte order. Every field is one atomic word, so that reads and writes may be concurrent.
//
// Record number n (from 1) is in slot (n-1) mod capacity; word 0 is n, and 0 while the record is being written. Times
// are in ticks; the header's first and newest anchors give their rate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace esp::obs {

inline constexpr uint64_t kFlightMagic = 0x3130'5446'5053'45ffull;  // "\xffESPFT01"
inline constexpr size_t kFlightHeaderBytes = 4096;
inline constexpr size_t kFlightRecordBytes = 64;
inline constexpr uint64_t kMaxFlightCapacity = uint64_t{1} << 24;

using FlightWord = std::atomic<uint64_t>;
static_assert(sizeof(FlightWord) == 8 && FlightWord::is_always_lock_free);

struct FlightAnchor {
  FlightWord ticks, mono_ns;
};

struct FlightHeader {
  FlightWord magic;     // written last: without it the file is not a recorder
  FlightWord capacity;  // a power of two
  FlightWord rank, world, pid;
  FlightWord wall_ns;  // Unix time of the first anchor
  FlightAnchor first;
  // newest is latest[num_anchors % 2]; two, so that a crash between two stores damages only one
  FlightWord num_anchors;
  FlightAnchor latest[2];
  alignas(64) FlightWord next;  // records begun so far; on a separate cache line, because every writer increments it
};
static_assert(sizeof(FlightHeader) <= kFlightHeaderBytes);

// word 0 number · 1 ticks · 2 group · 3 sequence · 4 bytes · 5 peer (low 32), kind, state, detail (high 16) · 6-7 text
struct FlightSlot {
  FlightWord words[8];
};
static_assert(sizeof(FlightSlot) == kFlightRecordBytes);

}  // namespace esp::obs
