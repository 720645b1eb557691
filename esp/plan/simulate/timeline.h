// Who did what when, for Perfetto: a process per device, rows for its kernels, its messages and its sums. Costs nothing
// unless asked for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/plan/simulate/engine.h"

namespace esp::plan {

enum class Row : uint8_t { compute, sends, sums };

class StepTimeline {
 public:
  explicit StepTimeline(bool on) : on_(on) {}
  void add_row(int copy, int stage);
  void name(TaskId task, int copy, int stage, Row row, const char* what);
  void name(TaskId task, int copy, int stage, Row row, const parallel::Action& action, int num_chunks);
  Json trace(const Engine& engine) const;

 private:
  struct Label {
    size_t device = 0;
    Row row = Row::compute;
    std::string text;
  };
  const bool on_;
  std::map<std::pair<int, int>, size_t> devices_;
  std::map<TaskId, Label> labels_;
};

}  // namespace esp::plan
