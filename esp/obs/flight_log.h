// Flight log: reads one rank's recorder file or snapshot into records, and merges several into one timeline.
//
// The input may come from a process that died at any instant, be truncated, or be malicious: a bad header is an
// IoError, unfinished or invalid records are skipped and counted, text is made printable.
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
  uint64_t number = 0;  // from 1, in order of begin
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
  int64_t wall_minus_mono_ns = 0;     // Unix time = record time + this
  uint64_t written = 0;               // records begun in total; older ones are overwritten
  uint64_t skipped = 0;               // slots without a complete record
  std::vector<FlightRecord> records;  // by number
};

FlightLog parse_flight_log(std::string_view bytes, std::string_view what);  // `what` names the source in errors
FlightLog read_flight_log(const std::string& path);

// Records that began and neither ended nor failed: the operations in progress.
std::vector<FlightRecord> unfinished(const FlightLog& log);

Json to_json(const FlightLog& log);
std::string describe(const FlightRecord& record);  // «collective all_reduce #7 of group 3, 4096 bytes: begun»

// One line per record of all ranks, by Unix time, then every rank's unfinished operations. Offsets, if given, are added
// to each rank's clock. `last`: only the newest lines, this many; 0: all.
std::string merged_timeline(std::span<const FlightLog> logs, std::span<const int64_t> clock_offsets_ns = {},
                            size_t last = 0);

// The last collective of every rank by group, one line per group in which ranks differ or an operation is unfinished:
// «group 0: ranks 0-1,3 were in all_reduce #57; rank 2 had ended #56». Empty: all ended alike.
std::string last_collectives(std::span<const FlightLog> logs);

}  // namespace esp::obs
