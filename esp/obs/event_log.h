// The event log: one JSON object per line, only ever appended to. metrics.jsonl is one.
//
// Appending is whole lines or nothing: a write that fails half way (a full disk) is taken back before the IoError is
// thrown. Several threads, and several processes with their own EventLog, may append to one file; lines do not mix.
// A line torn by a crash is cut off at the next open, and skipped by readers until then.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/obs/file.h"

namespace esp::obs {

struct EventLogOptions {
  int lines_per_write = 1;  // more: lines gather in memory and a crash loses them
  bool sync = false;        // fdatasync after every write: survives the machine, not just the process
  bool stamp = false;       // adds "wall_s" (Unix time) and "mono_s" (this host's monotonic clock)
};

class EventLog {
 public:
  explicit EventLog(const std::string& path, EventLogOptions options = {});
  ~EventLog();  // writes what is gathered; call flush() first to hear of an error

  // NaN and infinities become null, as JSON has none. Throws IoError; lines not written are then dropped and counted in
  // the message, so that a full disk does not become a full memory.
  void append(Json event);
  void flush();

 private:
  void flush_locked();

  EventLogOptions options_;
  std::mutex mutex_;  // guards everything below
  File file_;
  std::string gathered_;
  int num_gathered_ = 0;
};

struct EventBatch {
  std::vector<Json> events;
  uint64_t next_offset = 0;  // pass it back to read on
  bool torn = false;         // the last line has no end yet; it is not among the events and next_offset is before it
};

// Whole lines from byte `offset` on, at most about max_bytes of them. A line that is no JSON object is an IoError with
// path and line number (counted from the offset).
EventBatch read_events(const std::string& path, uint64_t offset = 0, size_t max_bytes = size_t{64} << 20);

}  // namespace esp::obs
