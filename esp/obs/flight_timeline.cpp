// Prints flight logs: one rank's log as JSON, the logs of several ranks as one timeline.
#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/obs/flight_log.h"

namespace esp::obs {

Json to_json(const FlightLog& log) {
  Json records = Json::array();
  for (const FlightRecord& record : log.records)
    records.push_back({{"number", record.number},
                       {"mono_ns", record.mono_ns},
                       {"kind", name_of(record.kind)},
                       {"state", name_of(record.state)},
                       {"text", record.text},
                       {"group", record.group},
                       {"sequence", record.sequence},
                       {"bytes", record.bytes},
                       {"peer", record.peer},
                       {"detail", record.detail}});
  return {{"rank", log.rank},
          {"world", log.world},
          {"pid", log.pid},
          {"wall_minus_mono_ns", log.wall_minus_mono_ns},
          {"written", log.written},
          {"skipped", log.skipped},
          {"records", std::move(records)}};
}

std::string describe(const FlightRecord& record) {
  std::string text(name_of(record.kind));
  if (!record.text.empty()) text += fmt::format(" {}", record.text);
  text += fmt::format(" #{} of group {:x}", record.sequence, record.group);
  if (record.peer >= 0) text += fmt::format(", peer {}", record.peer);
  return text + fmt::format(", {} bytes: {}", record.bytes, name_of(record.state));
}

std::string merged_timeline(std::span<const FlightLog> logs, std::span<const int64_t> clock_offsets_ns, size_t last) {
  ESP_CHECK(clock_offsets_ns.empty() || clock_offsets_ns.size() == logs.size(),
            "got {} logs and {} clock offsets; expected one offset per log, or none", logs.size(),
            clock_offsets_ns.size());
  struct TimelineEntry {
    int64_t at_ns;
    int64_t rank;
    const FlightRecord* record;
  };
  std::vector<TimelineEntry> entries;
  for (size_t k = 0; k < logs.size(); ++k) {
    int64_t offset = logs[k].wall_minus_mono_ns + (clock_offsets_ns.empty() ? 0 : clock_offsets_ns[k]);
    for (const FlightRecord& record : logs[k].records)
      entries.push_back({record.mono_ns + offset, logs[k].rank, &record});
  }
  std::ranges::stable_sort(entries, {}, &TimelineEntry::at_ns);

  fmt::memory_buffer text;
  auto out = std::back_inserter(text);
  const size_t first = last > 0 && entries.size() > last ? entries.size() - last : 0;
  if (first > 0) fmt::format_to(out, "… {} earlier records not shown\n", first);
  for (const TimelineEntry& entry : std::span(entries).subspan(first))
    fmt::format_to(out, "{:+16.9f} s  rank {:<3} {}\n", static_cast<double>(entry.at_ns - entries.front().at_ns) * 1e-9,
                   entry.rank, describe(*entry.record));
  for (const FlightLog& log : logs) {
    fmt::format_to(out, "rank {} wrote {} records, {} unreadable; unfinished:\n", log.rank, log.written, log.skipped);
    for (const FlightRecord& record : unfinished(log)) fmt::format_to(out, "  {}\n", describe(record));
  }
  return fmt::to_string(text);
}

namespace {

// The last collective of one rank in a group.
struct Last {
  uint64_t sequence = 0;
  FlightState state = FlightState::noted;
  std::string text;

  bool open() const { return state == FlightState::begun; }
};

std::string in_words(const Last& last) {
  if (last.sequence == 0) return "had started no collective";
  const char* how = last.open() ? "in" : last.state == FlightState::failed ? "failed in" : "had ended";
  return fmt::format("{} {} #{}", how, last.text, last.sequence);
}

}  // namespace

std::string last_collectives(std::span<const FlightLog> logs) {
  std::map<uint64_t, std::map<int64_t, Last>> groups;  // group → rank → its last collective
  for (const FlightLog& log : logs)
    for (const FlightRecord& record : log.records)
      if (record.kind == FlightKind::collective && record.sequence > 0)
        groups[record.group][log.rank] = {record.sequence, record.state, record.text};
  std::string text;
  for (const auto& [group, ranks] : groups) {
    std::map<std::string, std::vector<int64_t>> places;
    bool open = false;
    for (const auto& [rank, last] : ranks) {
      places[in_words(last)].push_back(rank);
      open = open || last.open();
    }
    if (places.size() < 2 && !open) continue;
    text += fmt::format("group {:x}:", group);
    const char* before = " ";
    for (const auto& [place, in_place] : places) {
      text += fmt::format("{}rank{} {} {}", before, in_place.size() == 1 ? "" : "s", fmt::join(in_place, ", "), place);
      before = "; ";
    }
    text += '\n';
  }
  return text;
}

}  // namespace esp::obs
