// Reading flight recorders: one rank's file or snapshot into records, several into one timeline.
//
// The bytes may come from a process that died at any instant, from a cut file, or from an enemy: a bad header is an
// IoError, unfinished or impossible records are skipped and counted, text is made printable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/obs/flight_recorder.h"

namespace esp::obs {

struct FlightRecord {
  uint64_t number = 0;  // from 1, in the order in which the records were begun
  int64_t mono_ns = 0;
  FlightKind kind = FlightKind::mark;
  FlightState state = FlightState::noted;
  std::string text;
  uint64_t group = 0, sequence = 0, bytes = 0;
  int32_t peer = -1;
  uint16_t detail = 0;
};

struct FlightLog {
  int64_t rank = -1, world = 0, pid = 0;
  int64_t wall_minus_mono_ns = 0;     // added to a record's time it gives Unix time
  uint64_t written = 0;               // records ever begun; those overwritten are gone
  uint64_t skipped = 0;               // slots that held no whole record though they should have
  std::vector<FlightRecord> records;  // by number
};

FlightLog parse_flight_log(std::string_view bytes, std::string_view what);  // `what` names the source in messages
FlightLog read_flight_log(const std::string& path);

// What had begun and neither ended nor failed: where the rank stood.
std::vector<FlightRecord> unfinished(const FlightLog& log);

Json to_json(const FlightLog& log);
std::string describe(const FlightRecord& record);  // «collective all_reduce #7 of group 3, 4096 bytes: begun»

// One line per record of all ranks, by Unix time, and after them what every rank left unfinished. Offsets, when given,
// are added to each rank's clock. `last`: of the lines only so many, the newest; 0: all.
std::string merged_timeline(std::span<const FlightLog> logs, std::span<const int64_t> clock_offsets_ns = {},
                            size_t last = 0);

// Where the ranks stood in each group when they wrote last, one line per group in which they differ or something was
// unfinished: «group 0: ranks 0-1,3 were in all_reduce #57; rank 2 had ended #56». Empty: all ended alike.
std::string whereabouts(std::span<const FlightLog> logs);

}  // namespace esp::obs
