#include "esp/plan/simulate/timeline.h"

#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/obs/spans.h"

namespace esp::plan {
namespace {

constexpr const char* kRows[] = {"compute", "messages", "sums"};
constexpr const char* kCategories[] = {"compute", "communication", "communication"};

}  // namespace

void StepTimeline::add_row(int replica, int stage) {
  if (enabled_) devices_.emplace(std::pair(replica, stage), devices_.size());
}

void StepTimeline::name(TaskId task, int replica, int stage, TimelineRow row, const char* what) {
  if (enabled_) labels_[task] = {devices_.at({replica, stage}), row, what};
}

void StepTimeline::name(TaskId task, int replica, int stage, TimelineRow row, const parallel::PipelineAction& action,
                        int num_chunks) {
  if (enabled_) labels_[task] = {devices_.at({replica, stage}), row, parallel::name_of(action, num_chunks)};
}

Json StepTimeline::trace(const EventEngine& engine) const {
  std::vector<std::vector<obs::SpanRecord>> rows(devices_.size() * std::size(kRows));
  for (const TaskInterval& one : engine.intervals()) {
    const auto label = labels_.find(one.task);
    if (label == labels_.end()) continue;
    obs::SpanRecord record;
    std::memcpy(record.name, label->second.text.data(), std::min(label->second.text.size(), sizeof record.name - 1));
    const auto row = static_cast<size_t>(label->second.row);
    record.category = kCategories[row];
    record.begin_ns = std::llround(one.begin * 1e9);
    record.end_ns = std::llround(one.end * 1e9);
    rows[label->second.device * std::size(kRows) + row].push_back(record);
  }
  std::vector<Json> traces;
  for (const auto& [key, device] : devices_) {
    size_t most = 1;
    for (size_t r = 0; r < std::size(kRows); ++r) most = std::max(most, rows[device * std::size(kRows) + r].size());
    obs::Tracer tracer(static_cast<int>(device), most);
    for (size_t r = 0; r < std::size(kRows); ++r) {
      obs::TraceRow* row = tracer.add_row(kRows[r]);
      for (const obs::SpanRecord& record : rows[device * std::size(kRows) + r]) row->add(record);
    }
    Json trace = tracer.trace();
    trace["traceEvents"][0]["args"]["name"] = fmt::format("replica {} stage {}", key.first, key.second);
    traces.push_back(std::move(trace));
  }
  return obs::merge_traces(traces, std::vector<int64_t>(traces.size(), 0));
}

}  // namespace esp::plan
