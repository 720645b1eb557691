// Timeline of a simulation for Perfetto: a process per device, rows for its kernels, messages and sums. No cost unless
// requested.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/plan/simulate/event_engine.h"

namespace esp::plan {

enum class TimelineRow : uint8_t { compute, sends, sums };

class StepTimeline {
 public:
  explicit StepTimeline(bool on) : on_(on) {}
  void add_row(int copy, int stage);
  void name(TaskId task, int copy, int stage, TimelineRow row, const char* what);
  void name(TaskId task, int copy, int stage, TimelineRow row, const parallel::PipelineAction& action, int num_chunks);
  Json trace(const EventEngine& engine) const;

 private:
  struct Label {
    size_t device = 0;
    TimelineRow row = TimelineRow::compute;
    std::string text;
  };
  const bool on_;
  std::map<std::pair<int, int>, size_t> devices_;
  std::map<TaskId, Label> labels_;
};

}  // namespace esp::plan
