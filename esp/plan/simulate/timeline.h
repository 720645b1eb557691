// Timeline of a simulated step for Perfetto: one process per device, with rows for kernels, messages and gradient sums.
// A disabled timeline records nothing.
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
  explicit StepTimeline(bool enabled) : enabled_(enabled) {}
  void add_row(int replica, int stage);
  void name(TaskId task, int replica, int stage, TimelineRow row, const char* what);
  void name(TaskId task, int replica, int stage, TimelineRow row, const parallel::PipelineAction& action,
            int num_chunks);
  Json trace(const EventEngine& engine) const;

 private:
  struct TaskLabel {
    size_t device = 0;
    TimelineRow row = TimelineRow::compute;
    std::string text;
  };
  const bool enabled_;
  std::map<std::pair<int, int>, size_t> devices_;
  std::map<TaskId, TaskLabel> labels_;
};

}  // namespace esp::plan
