#include "esp/train/collective_spans.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "esp/obs/flight_log.h"

namespace esp::train {

void add_collective_spans(obs::FlightRecorder& flight, obs::Tracer& tracer) {
  const obs::FlightLog log = obs::parse_flight_log(flight.snapshot(), "flight recorder");
  std::map<uint64_t, obs::TraceRow*> rows;  // trace row of each group, by group id
  // Calls that have started and not ended, by group id and call number.
  std::map<std::pair<uint64_t, uint64_t>, const obs::FlightRecord*> begun;
  for (const obs::FlightRecord& record : log.records) {
    if (record.kind != obs::FlightKind::collective) continue;
    const std::pair key(record.group, record.sequence);
    if (record.state == obs::FlightState::begun) {
      begun[key] = &record;
      continue;
    }
    const auto start = begun.find(key);
    if (start == begun.end()) continue;
    obs::TraceRow*& row = rows[record.group];
    if (!row) row = tracer.add_row(rows.size() == 1 ? "communication" : fmt::format("communication {}", rows.size()));
    obs::SpanRecord span;
    const std::string& name = start->second->text;
    std::copy_n(name.begin(), std::min(name.size(), sizeof span.name - 1), span.name);
    span.category = "communication";
    span.begin_ns = start->second->mono_ns;
    span.end_ns = record.mono_ns;
    span.args[0] = {"bytes", static_cast<int64_t>(start->second->bytes)};
    row->add(span);
    begun.erase(start);
  }
}

}  // namespace esp::train
