// Published results, one per row of a table: what was trained, on what, how, and what was measured. Columns are those
// of the validation format (docs/planner.md); any may be missing. What a row does not say is assumed, and said.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "esp/plan/catalog.h"
#include "esp/plan/cluster.h"
#include "esp/plan/csv.h"
#include "esp/plan/estimate.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"

namespace esp::plan {

enum class RowKind { step, layer_time, memory, oom };
// What a row's memory counts.
enum class MemoryKind { states, activations, allocated, reserved, total };

struct MeasuredRow {
  std::string id, source, model, notes;
  RowKind kind = RowKind::step;
  Shape shape;
  Cluster cluster;
  Policy policy;
  double measured_s = 0, measured_gb = 0;  // 0: not given
  MemoryKind memory_kind = MemoryKind::total;
  double gb = 1e9;  // bytes of the row's unit
  std::vector<std::string> assumed;
  std::string unread;  // why the row could not be made sense of; empty: it could
};

// UsageError: no table, or none of its columns known.
std::vector<MeasuredRow> read_rows(std::string_view text, std::string_view name, const Catalog& catalog);
MeasuredRow read_row(const CsvRow& cells, const Catalog& catalog);

// Parts of it, each over the cells of one row.
Shape row_shape(const CsvRow& cells, std::vector<std::string>& assumed);
// The policy with what is told; `open` gets what was not and may be chosen: see choose_untold.
struct Untold {
  bool micro_batch = false, interleave = false, recompute = false;
};
Policy row_policy(const CsvRow& cells, const Shape& shape, const Processor& processor, int gpus, Untold& open,
                  std::vector<std::string>& assumed);
// Whoever publishes a result has tuned what he does not mention: of the micro-batches, chunks and recomputations left
// open, those that fit and are predicted fastest.
void choose_untold(MeasuredRow& row, const Untold& open);

// Words of the columns. What is not recognised is the default, and said.
struct ScheduleWords {
  std::string schedule = "1f1b";
  bool vocabulary = false;
  bool balanced = false;  // layers redistributed for the head's sake
};
ScheduleWords parse_schedule(const std::string& words, int interleave, std::vector<std::string>& assumed);
std::string parse_precision(const std::string& words, const Processor& processor, std::vector<std::string>& assumed);
bool parse_flag(const std::string& words, bool otherwise);

}  // namespace esp::plan
