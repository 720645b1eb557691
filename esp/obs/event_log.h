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
  int lines_per_write = 1;  // if > 1, lines are buffered, and a crash loses the buffered lines
  // calls fdatasync after every write, so that lines survive a crash of the machine, not only of the process
  bool sync = false;
  bool stamp = false;  // adds "wall_s" (Unix time) and "mono_s" (this host's monotonic clock) to every event
};

class EventLog {
 public:
  explicit EventLog(const std::string& path, EventLogOptions options = {});
  ~EventLog();  // writes buffered lines and ignores errors; call flush() first to get them

  // NaN and infinities become null, because JSON has neither. Throws IoError. Unwritten lines are then dropped and
  // counted in the message, so that they do not fill the memory while a disk is full.
  void append(Json event);
  void flush();

 private:
  void flush_locked();

  EventLogOptions options_;
  std::mutex mutex_;  // guards the members below
  File file_;
  std::string gathered_;
  int num_gathered_ = 0;
};

struct EventBatch {
  std::vector<Json> events;
  uint64_t next_offset = 0;  // `offset` for the next call of read_events
  bool torn = false;  // The last line has no line end yet. It is not in `events`, and next_offset is its beginning.
};

// Reads whole lines from byte `offset` on, at most about max_bytes. A line that is not a JSON object causes an IoError
// with the path and the line number (counted from the offset).
EventBatch read_events(const std::string& path, uint64_t offset = 0, size_t max_bytes = size_t{64} << 20);

}  // namespace esp::obs
