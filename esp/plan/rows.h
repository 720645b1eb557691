// Published results; each row of the table is one run: model, hardware, policy and measurement. Columns are those of
// the validation format (docs/planner.md); any column may be missing. Assumptions for missing fields are recorded.
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
// Which memory the row's figure measures.
enum class MemoryKind { states, activations, allocated, reserved, total };

struct MeasuredRow {
  std::string id, source, model, notes;
  RowKind kind = RowKind::step;
  ModelShape shape;
  Cluster cluster;
  Policy policy;
  double measured_s = 0, measured_gb = 0;  // time in s, memory in GB of `gb` bytes; 0: missing
  MemoryKind memory_kind = MemoryKind::total;
  double gb = 1e9;  // bytes of one GB in this row: 1e9 or 2^30
  std::vector<std::string> assumed;
  std::string read_error;  // error message if the row could not be read, otherwise empty
};

// Reads a CSV table. IoError if the text is not a table or has no known column.
std::vector<MeasuredRow> read_rows(std::string_view text, std::string_view name, const Catalog& catalog);
MeasuredRow read_row(const CsvRow& cells, const Catalog& catalog);

// Parts of read_row(): the model, then the policy.
ModelShape row_shape(const CsvRow& cells, std::vector<std::string>& assumed);
// The fields that a row leaves open and that choose_missing() may choose.
struct MissingFields {
  bool micro_batch = false, interleave = false, recompute = false;
};
Policy row_policy(const CsvRow& cells, const ModelShape& shape, const Processor& processor, int gpus,
                  MissingFields& open, std::vector<std::string>& assumed);
// Chooses the open fields of a row. Published runs are assumed to be tuned: of all candidates for micro-batch size,
// chunks and recomputation, the fastest one that is predicted to fit is taken.
void choose_missing(MeasuredRow& row, const MissingFields& open);

// Parse the words of a cell. Unrecognised words give the default, which is recorded in `assumed`.
struct ScheduleWords {
  std::string schedule = "1f1b";
  bool vocabulary = false;
  bool balanced = false;  // the last stage gets fewer layers, because it also has the head
};
ScheduleWords parse_schedule(const std::string& words, int interleave, std::vector<std::string>& assumed);
std::string parse_precision(const std::string& words, const Processor& processor, std::vector<std::string>& assumed);
bool parse_flag(const std::string& words, bool otherwise);

}  // namespace esp::plan
