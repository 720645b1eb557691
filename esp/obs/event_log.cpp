#include "esp/obs/event_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"

namespace esp::obs {
namespace {

// A file lock: other processes cannot append while this object exists, so the end of the file stays where it is.
class EndLock {
 public:
  explicit EndLock(const File& file) : fd_(file.fd()) {
    while (flock(fd_, LOCK_EX) != 0)
      if (errno != EINTR) file.fail("cannot lock");
  }
  ~EndLock() { flock(fd_, LOCK_UN); }

 private:
  int fd_;
};

// Truncates the file after its last line end. This removes a line that a crash left incomplete.
void cut_torn_line(File& file) {
  constexpr uint64_t kStep = 64 << 10;
  const uint64_t size = file.size();
  uint64_t end = size;
  while (end > 0) {
    uint64_t begin = end > kStep ? end - kStep : 0;
    std::string text = file.read(begin, end - begin);
    auto newline = text.rfind('\n');
    end = newline == std::string::npos ? begin : begin + newline + 1;
    if (newline != std::string::npos) break;
  }
  if (end < size) file.truncate(end);
}

}  // namespace

EventLog::EventLog(const std::string& path, EventLogOptions options)
    : options_(options), file_(path, O_RDWR | O_CREAT | O_APPEND) {
  EndLock lock(file_);
  cut_torn_line(file_);
}

EventLog::~EventLog() {
  try {
    flush();
  } catch (const IoError&) {
    // A destructor must not throw: callers that need the error call flush() first.
  }
}

void EventLog::append(Json event) {
  ESP_CHECK(event.is_object(), "event: got {}; expected a JSON object", event.type_name());
  if (options_.stamp) {
    event["wall_s"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    event["mono_s"] = static_cast<double>(now_ns()) * 1e-9;
  }
  std::string line = event.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::lock_guard lock(mutex_);
  gathered_ += line;
  gathered_ += '\n';
  if (++num_gathered_ >= options_.lines_per_write) flush_locked();
}

void EventLog::flush() {
  std::lock_guard lock(mutex_);
  flush_locked();
}

void EventLog::flush_locked() {
  if (num_gathered_ == 0) return;
  EndLock lock(file_);
  const uint64_t before = file_.size();
  std::string lines = std::exchange(gathered_, {});
  int num_lines = std::exchange(num_gathered_, 0);
  try {
    file_.write_all(lines);
    if (options_.sync) file_.sync();
  } catch (const IoError& error) {
    std::string text = fmt::format("{}; {} line(s) not written", error.what(), num_lines);
    if (ftruncate(file_.fd(), static_cast<off_t>(before)) != 0) text += ", and the file may end in an incomplete line";
    throw IoError(text);
  }
}

EventBatch read_events(const std::string& path, uint64_t offset, size_t max_bytes) {
  File file(path, O_RDONLY);
  const uint64_t size = file.size();
  if (offset > size)
    throw IoError(fmt::format("{}: cannot read from byte {}: the file has only {} bytes", path, offset, size));
  std::string text = file.read(offset, std::min<uint64_t>(size - offset, max_bytes));
  const bool to_the_end = offset + text.size() == size;

  EventBatch batch;
  size_t begin = 0;
  for (int line = 1;; ++line) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    std::string what = fmt::format("{} line {}", path, line);
    Json event = parse_json(std::string_view(text).substr(begin, end - begin), what);
    if (!event.is_object()) throw IoError(fmt::format("{}: got {}; expected a JSON object", what, event.type_name()));
    batch.events.push_back(std::move(event));
    begin = end + 1;
  }
  if (begin == 0 && !to_the_end)
    throw IoError(fmt::format("{}: the line at byte {} is longer than {} bytes", path, offset, max_bytes));
  batch.next_offset = offset + begin;
  batch.torn = to_the_end && begin < text.size();
  return batch;
}

}  // namespace esp::obs
