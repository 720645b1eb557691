#include "esp/plan/rows.h"
#include "esp/plan/normalise.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

RowKind kind_of(const CsvRow& cells) {
  const std::string words = cells.words("kind");
  if (has(words, "oom") || has(words, "memory_exceeded")) return RowKind::oom;
  if (has(words, "layer")) return RowKind::layer_time;
  if (has(words, "mem")) return RowKind::memory;
  return RowKind::step;
}

MemoryKind memory_kind_of(const std::string& words) {
  if (has(words, "states only") || has(words, "model states")) return MemoryKind::states;
  if (has(words, "reserved") || has(words, "cached")) return MemoryKind::reserved;
  if (has(words, "alloc")) return MemoryKind::allocated;
  if (has(words, "smi") || has(words, "peak") || has(words, "total")) return MemoryKind::total;
  if (has(words, "activation") && !has(words, "+")) return MemoryKind::activations;
  if (has(words, "states") || has(words, "optimizer")) return MemoryKind::states;
  return MemoryKind::total;
}

// Bytes per GB: tools print GiB as "GB"; formulas use 1e9 bytes.
double unit_of(const std::string& words, MemoryKind kind) {
  if (has(words, "1e9") || has(words, "10^9") || has(words, "decimal")) return 1e9;
  if (has(words, "gib") || has(words, "2^30") || has(words, "1024")) return kGiB;
  return kind == MemoryKind::states || kind == MemoryKind::activations ? 1e9 : kGiB;
}

// Step time from a FLOP rate. Default: the rate counts the whole score matrix (no causal mask). Hardware rates also
// count recomputation.
double time_of_rate(const CsvRow& cells, MeasuredRow& row) {
  const auto tflops = cells.number("tflops_gpu", 1e-3, 1e5), used = cells.number("mfu_pct", 0.01, 100),
             busy = cells.number("hfu_pct", 0.01, 100);
  if (!tflops && !used && !busy) return 0;
  const std::string kind = cells.words("tflops_kind");
  ModelShape counted = row.shape;
  counted.causal = counted.causal && has(kind, "causal") && !has(kind, "non-causal");
  const Estimate e = estimate(counted, row.cluster, row.policy);
  const bool executed = tflops ? has(kind, "hardware") || has(kind, "hfu") || has(kind, "executed") : !used;
  const double peak = row.cluster.processor.flops(row.policy.precision);
  const double rate = tflops ? *tflops * 1e12 : (used ? *used : *busy) / 100 * peak;
  row.assumed.push_back(fmt::format("step time from {} per processor: FLOPs {} recomputation, {} score matrix",
                                    tflops ? "TFLOP/s" : "utilisation", executed ? "with" : "without",
                                    counted.causal ? "half of the" : "whole"));
  return (executed ? e.hardware_flops : e.flops) / (rate * row.policy.world());
}

// The measured step time of a row: the printed time; without it, from tokens per second; without both, from the FLOP
// rate.
double measured_time(const CsvRow& cells, MeasuredRow& row) {
  if (const auto time = cells.number("step_time_s", 1e-9, 1e9)) {
    const std::string words = cells.words("step_time_s");
    const size_t unit = words.find_first_not_of("~<>= 0123456789.,");
    const auto is = [&](const char* name) { return unit != std::string::npos && words.compare(unit, 2, name) == 0; };
    return *time * (is("ms") ? 1e-3 : is("us") ? 1e-6 : 1);
  }
  if (row.kind == RowKind::layer_time) return 0;
  if (const auto rate = cells.number("tok_s_gpu", 1e-6, 1e12))
    return static_cast<double>(row.policy.global_batch * row.shape.seq) / (*rate * row.policy.world());
  return row.kind == RowKind::step && row.shape.layers > 0 ? time_of_rate(cells, row) : 0;
}

}  // namespace

MeasuredRow read_row(const CsvRow& cells, const Catalog& catalog) {
  MeasuredRow row;
  row.id = cells.text("row_id");
  row.source = cells.text("source");
  row.model = cells.text("model");
  row.notes = cells.text("notes");
  row.kind = kind_of(cells);
  row.shape = row_shape(cells, row.assumed);
  const double memory = cells.number("gpu_mem_gb", 0.1, 1e5).value_or(0);
  const ProcessorRow* chip = catalog.recognise(cells.text("gpu"), memory);
  if (!chip) {
    chip = &catalog.processor("A100");
    if (row.shape.layers > 0)
      row.assumed.push_back(fmt::format("{} (unknown gpu \"{}\")", chip->name, cells.text("gpu")));
  }
  double product = 1;
  for (const char* axis : {"tp", "pp", "dp", "cp"}) product *= cells.number(axis, 1, 1e6).value_or(1);
  const auto gpus = static_cast<int>(cells.number("gpus", 1, 1e6).value_or(std::min(product, 1e6)));
  ClusterRequest request;
  request.gpus = gpus;
  request.per_node = static_cast<int>(cells.number("gpus_per_node", 1, 4096).value_or(0));
  request.net_gbps_per_node = cells.number("net_gbps_per_node", 0.01, 1e6).value_or(0);
  request.memory_gb = memory;
  row.cluster = make_cluster(catalog, *chip, request, row.shape.layers > 0 ? &row.assumed : nullptr);
  MissingFields open;
  row.policy = row_policy(cells, row.shape, chip->processor, gpus, open, row.assumed);
  const std::string memory_words = cells.words("mem_kind");
  row.memory_kind = memory_kind_of(memory_words);
  row.gb = unit_of(memory_words, row.memory_kind);
  row.measured_gb = cells.number("mem_gb", 1e-6, 1e6).value_or(0);
  if (row.shape.layers > 0) choose_missing(row, open);
  row.measured_s = measured_time(cells, row);
  return row;
}

std::vector<MeasuredRow> read_rows(std::string_view text, std::string_view name, const Catalog& catalog) {
  const auto table = parse_csv(text, name);
  if (table.empty())
    throw IoError(fmt::format("{}: the table has no rows; expected a first line with column names", name));
  constexpr std::string_view kTelling[] = {"row_id", "source", "kind", "params_b", "layers", "gpu", "step_time_s"};
  const CsvRow head(table[0], table[0]);
  const auto known = std::count_if(std::begin(kTelling), std::end(kTelling),
                                   [&](std::string_view column) { return !head.text(column).empty(); });
  if (known < 2)
    throw IoError(
        fmt::format("{}: the first line names fewer than two known columns; expected row_id, source, kind, layers, "
                    "hidden, gpu, gpus, tp, pp, mbs, gbs, step_time_s …",
                    name));
  std::vector<MeasuredRow> rows;
  rows.reserve(table.size() - 1);
  for (size_t i = 1; i < table.size(); ++i) {
    const CsvRow cells(table[0], table[i]);
    try {
      rows.push_back(read_row(cells, catalog));
    } catch (const Error& error) {  // an error in one row must not affect the others
      MeasuredRow row;
      row.id = cells.text("row_id");
      row.source = cells.text("source");
      row.model = cells.text("model");
      row.kind = kind_of(cells);
      row.read_error = error.what();
      rows.push_back(std::move(row));
    }
    if (rows.back().id.empty()) rows.back().id = fmt::format("row {}", i);
  }
  return rows;
}

}  // namespace esp::plan
