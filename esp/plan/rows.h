// Published results, one per table row: model, hardware, policy and measurement. Columns are those of the validation
// format (docs/planner.md); any may be missing. Assumptions for missing fields are recorded.
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
// What a row's memory includes.
enum class MemoryKind { states, activations, allocated, reserved, total };

struct MeasuredRow {
  std::string id, source, model, notes;
  RowKind kind = RowKind::step;
  ModelShape shape;
  Cluster cluster;
  Policy policy;
  double measured_s = 0, measured_gb = 0;  // 0: missing
  MemoryKind memory_kind = MemoryKind::total;
  double gb = 1e9;  // bytes of the row's unit
  std::vector<std::string> assumed;
  std::string unread;  // why the row could not be read; empty: it was read
};

// UsageError: not a table, or no known column.
std::vector<MeasuredRow> read_rows(std::string_view text, std::string_view name, const Catalog& catalog);
MeasuredRow read_row(const CsvRow& cells, const Catalog& catalog);

// Readers of parts of a row.
ModelShape row_shape(const CsvRow& cells, std::vector<std::string>& assumed);
// The policy of the given fields; `open` lists missing fields that may be chosen: see choose_untold.
struct MissingFields {
  bool micro_batch = false, interleave = false, recompute = false;
};
Policy row_policy(const CsvRow& cells, const ModelShape& shape, const Processor& processor, int gpus,
                  MissingFields& open, std::vector<std::string>& assumed);
// Fills missing fields, assuming that published results are tuned: of the open micro-batches, chunks and
// recomputations, chooses those that fit with the fastest prediction.
void choose_missing(MeasuredRow& row, const MissingFields& open);

// Parses words of the columns. Unrecognised words have the default and are recorded.
struct ScheduleWords {
  std::string schedule = "1f1b";
  bool vocabulary = false;
  bool balanced = false;  // layers are redistributed to balance the head
};
ScheduleWords parse_schedule(const std::string& words, int interleave, std::vector<std::string>& assumed);
std::string parse_precision(const std::string& words, const Processor& processor, std::vector<std::string>& assumed);
bool parse_flag(const std::string& words, bool otherwise);

}  // namespace esp::plan
