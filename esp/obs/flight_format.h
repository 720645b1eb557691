// Format of the flight recorder, in memory and in its file: one header page, then `capacity` records of 64 bytes, in
// the machine's byte order. Every field is one atomic word, so that threads may read and write concurrently.
//
// Record number n (from 1) is in slot (n-1) mod capacity. Word 0 of the slot is n; while the record is being written,
// word 0 is 0. Times are in ticks (ticks.h). An anchor is one instant in both ticks and nanoseconds. The first and the
// newest anchor in the header give the tick rate.
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
  FlightWord magic;     // written last; a file without it is not a flight recorder
  FlightWord capacity;  // number of records; a power of two
  FlightWord rank, world, pid;
  FlightWord wall_ns;  // Unix time of the first anchor
  FlightAnchor first;
  // The newest anchor is latest[num_anchors % 2]. There are two, so that a crash while one is written leaves the other
  // intact.
  FlightWord num_anchors;
  FlightAnchor latest[2];
  alignas(64) FlightWord next;  // records begun so far; on a separate cache line, because every writer increments it
};
static_assert(sizeof(FlightHeader) <= kFlightHeaderBytes);

// Words of a record: 0 number · 1 ticks · 2 group · 3 sequence · 4 bytes · 5 peer (low 32 bits), kind, state, detail
// (high 16 bits) · 6-7 text
struct FlightSlot {
  FlightWord words[8];
};
static_assert(sizeof(FlightSlot) == kFlightRecordBytes);

}  // namespace esp::obs
