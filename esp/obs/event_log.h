// Event log: one JSON object per line, append-only. metrics.jsonl is one.
//
// An append writes whole lines or nothing: a partial write (full disk) is undone before the IoError is thrown. Several
// threads, and several processes with separate EventLogs, may append to one file; lines do not interleave. A line torn
// by a crash is removed at the next open; readers skip it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/obs/file.h"

namespace esp::obs {

struct EventLogOptions {
  int lines_per_write = 1;  // more: lines are buffered, and a crash loses them
  bool sync = false;        // fdatasync after every write: survives a crash of the machine, not only of the process
  bool stamp = false;       // adds "wall_s" (Unix time) and "mono_s" (this host's monotonic clock)
};

class EventLog {
 public:
  explicit EventLog(const std::string& path, EventLogOptions options = {});
  ~EventLog();  // writes buffered lines; call flush() first to get errors

  // NaN and infinities become null, because JSON has neither. Throws IoError; unwritten lines are then dropped and
  // counted in the message, so that a full disk does not fill the memory.
  void append(Json event);
  void flush();

 private:
  void flush_locked();

  EventLogOptions options_;
  std::mutex mutex_;  // guards all below
  File file_;
  std::string gathered_;
  int num_gathered_ = 0;
};

struct EventBatch {
  std::vector<Json> events;
  uint64_t next_offset = 0;  // pass it to the next call
  bool torn = false;         // the last line has no end yet; it is not among the events, and next_offset is before it
};

// Reads whole lines from byte `offset` on, about max_bytes at most. A line that is not a JSON object is an IoError with
// path and line number (counted from the offset).
EventBatch read_events(const std::string& path, uint64_t offset = 0, size_t max_bytes = size_t{64} << 20);

}  // namespace esp::obs
