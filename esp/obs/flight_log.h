// Flight log: reads one rank's recorder file or snapshot into records, and merges several logs into one timeline.
//
// The input may be truncated, malicious, or from a process that died at any instant. A bad header causes an IoError.
// Unfinished or invalid records are skipped and counted, and unprintable characters are replaced.
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
  uint64_t number = 0;  // counts from 1, in the order in which records were begun
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
  int64_t wall_minus_mono_ns = 0;     // Unix time of a record = its mono time + this
  uint64_t written = 0;               // records begun in total, including those that newer ones have overwritten
  uint64_t skipped = 0;               // slots that contain no complete record
  std::vector<FlightRecord> records;  // in ascending order of `number`
};

FlightLog parse_flight_log(std::string_view bytes, std::string_view what);  // `what` names the source in errors
FlightLog read_flight_log(const std::string& path);

// Records that began and neither ended nor failed: the operations in progress.
std::vector<FlightRecord> unfinished(const FlightLog& log);

Json to_json(const FlightLog& log);
std::string describe(const FlightRecord& record);  // «collective all_reduce #7 of group 3, 4096 bytes: begun»

// One line per record of all ranks, in order of Unix time, then the unfinished operations of every rank. If clock
// offsets are given, offset k is added to the times of logs[k]. `last`: keeps only this many of the newest lines; 0:
// all.
std::string merged_timeline(std::span<const FlightLog> logs, std::span<const int64_t> clock_offsets_ns = {},
                            size_t last = 0);

// Compares the last collective of every rank, by group. One line per group in which ranks differ or an operation is
// unfinished: «group 0: ranks 0-1,3 were in all_reduce #57; rank 2 had ended #56». Empty if all ranks ended the same
// collectives.
std::string last_collectives(std::span<const FlightLog> logs);

}  // namespace esp::obs
