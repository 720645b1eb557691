#include "esp/obs/flight_log.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::obs {
namespace {

constexpr std::string_view kKinds[] = {"collective", "send", "recv", "connect", "lost", "step", "file", "mark"};
constexpr std::string_view kStates[] = {"begun", "ended", "failed", "noted"};

uint64_t word_at(std::string_view bytes, size_t offset) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + offset, sizeof word);
  return word;
}

// Converts ticks to nanoseconds: a linear function through the first and the newest anchor.
class Times {
 public:
  Times(std::string_view bytes, std::string_view what) {
    ticks_ = word_at(bytes, offsetof(FlightHeader, first));
    mono_ns_ = word_at(bytes, offsetof(FlightHeader, first) + 8);
    size_t newest =
        offsetof(FlightHeader, latest) + word_at(bytes, offsetof(FlightHeader, num_anchors)) % 2 * sizeof(FlightAnchor);
    uint64_t ticks = word_at(bytes, newest) - ticks_, ns = word_at(bytes, newest + 8) - mono_ns_;
    if (ticks == 0 || ns == 0 || ticks >> 63 || ns >> 63 || mono_ns_ >> 60)
      throw IoError(fmt::format("{}: invalid flight recorder: its clock anchors are unusable", what));
    rate_ = static_cast<double>(ns) / static_cast<double>(ticks);
  }

  // Clamped to about 63 years before or after the first anchor, so that sums of arbitrary times do not overflow.
  int64_t mono_ns(uint64_t ticks) const {
    double since = static_cast<double>(static_cast<int64_t>(ticks - ticks_)) * rate_;
    return static_cast<int64_t>(mono_ns_) + static_cast<int64_t>(std::clamp(since, -2e18, 2e18));
  }
  uint64_t first_mono_ns() const { return mono_ns_; }

 private:
  uint64_t ticks_ = 0, mono_ns_ = 0;
  double rate_ = 1;
};

std::string printable(const char* text, size_t size) {
  std::string clean;
  for (size_t i = 0; i < size && text[i]; ++i) clean += text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
  return clean;
}

bool parse_record(std::string_view slot, const Times& times, FlightRecord& record) {
  uint64_t packed = word_at(slot, 40);
  auto kind = static_cast<uint8_t>(packed >> 32), state = static_cast<uint8_t>(packed >> 40);
  if (kind >= std::size(kKinds) || state >= std::size(kStates)) return false;
  record = {.number = word_at(slot, 0),
            .mono_ns = times.mono_ns(word_at(slot, 8)),
            .kind = static_cast<FlightKind>(kind),
            .state = static_cast<FlightState>(state),
            .text = printable(slot.data() + 48, 16),
            .group = word_at(slot, 16),
            .sequence = word_at(slot, 24),
            .bytes = word_at(slot, 32),
            .peer = static_cast<int32_t>(static_cast<uint32_t>(packed)),
            .detail = static_cast<uint16_t>(packed >> 48)};
  return true;
}

}  // namespace

std::string_view name_of(FlightKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}
std::string_view name_of(FlightState state) {
  return kStates[static_cast<size_t>(state)];
}

FlightLog parse_flight_log(std::string_view bytes, std::string_view what) {
  if (bytes.size() < kFlightHeaderBytes || word_at(bytes, 0) != kFlightMagic)
    throw IoError(fmt::format("{}: not a flight recorder ({} bytes)", what, bytes.size()));
  const uint64_t capacity = word_at(bytes, offsetof(FlightHeader, capacity));
  if (!std::has_single_bit(capacity) || capacity > kMaxFlightCapacity)
    throw IoError(fmt::format("{}: invalid flight recorder: its capacity is {} records", what, capacity));
  const Times times(bytes, what);
  FlightLog log;
  log.rank = static_cast<int64_t>(word_at(bytes, offsetof(FlightHeader, rank)));
  log.world = static_cast<int64_t>(word_at(bytes, offsetof(FlightHeader, world)));
  log.pid = static_cast<int64_t>(word_at(bytes, offsetof(FlightHeader, pid)));
  log.written = word_at(bytes, offsetof(FlightHeader, next));
  const uint64_t wall_ns = word_at(bytes, offsetof(FlightHeader, wall_ns));
  if (wall_ns >> 62) throw IoError(fmt::format("{}: invalid flight recorder: its start time is out of range", what));
  log.wall_minus_mono_ns = static_cast<int64_t>(wall_ns - times.first_mono_ns());

  const uint64_t there = std::min<uint64_t>(capacity, (bytes.size() - kFlightHeaderBytes) / kFlightRecordBytes);
  for (uint64_t slot = 0; slot < there; ++slot) {
    if (slot >= log.written) break;
    std::string_view raw = bytes.substr(kFlightHeaderBytes + slot * kFlightRecordBytes, kFlightRecordBytes);
    uint64_t number = word_at(raw, 0);
    FlightRecord record;
    if (number == 0 || number > log.written || (number - 1) % capacity != slot || !parse_record(raw, times, record)) {
      ++log.skipped;
    } else {
      log.records.push_back(std::move(record));
    }
  }
  log.skipped += std::min(capacity, log.written) - std::min(there, log.written);
  std::ranges::sort(log.records, {}, &FlightRecord::number);
  return log;
}

FlightLog read_flight_log(const std::string& path) {
  return parse_flight_log(read_whole_file(path, kFlightHeaderBytes + kMaxFlightCapacity * kFlightRecordBytes), path);
}

std::vector<FlightRecord> unfinished(const FlightLog& log) {
  std::map<std::tuple<FlightKind, uint64_t, uint64_t, int32_t, std::string>, const FlightRecord*> open;
  for (const FlightRecord& record : log.records) {
    auto key = std::tuple(record.kind, record.group, record.sequence, record.peer, record.text);
    if (record.state == FlightState::begun) open[key] = &record;
    if (record.state == FlightState::ended || record.state == FlightState::failed) open.erase(key);
  }
  std::vector<FlightRecord> left;
  for (const auto& [key, record] : open) left.push_back(*record);
  std::ranges::sort(left, {}, &FlightRecord::number);
  return left;
}

}  // namespace esp::obs
