#include "apps/espalier/bench_train_layouts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/bench_comm.h"
#include "apps/espalier/bench_train_candidate.h"
#include "apps/espalier/cpu_load.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/model/counts.h"
#include "esp/model/model.h"
#include "esp/train/run_config.h"

namespace esp::app {
namespace {

const Cells kHead = {"layout",     "ranks × threads",      "tokens/s",
                     "step ms",    "speed vs one process", "of ideal pipeline",
                     "exposed ms", "peak MiB per rank",    "memory vs one process",
                     "loss"};

struct Row {
  std::string name;
  double step_s = 0, of_one = 0, ideal = 1, waited_ms = 0, loss = 0;
  uint64_t peak_bytes = 0;  // maximum over ranks
  int ranks = 1, threads = 1;
};

// Ideal efficiency of a pipeline with P stages and m micro-batches: m/(m + P − 1); interleaved, with v chunks per
// stage: m·v/(m·v + P − 1). The rest of the time is the bubble.
double ideal_of(const TrainCase& spec) {
  const train::RunConfig config = train::parse_run_config("", "bench train", spec.settings);
  const auto& p = config.parallel;
  if (p.pp == 1) return 1;
  const double replicas = static_cast<double>(spec.ranks) / static_cast<double>(p.pp * p.tp * p.cp);
  const double micro = static_cast<double>(config.train.micro_batch);
  const double m = micro > 0 ? static_cast<double>(spec.batch) / replicas / micro : 1;
  if (p.schedule == "none") return 1.0 / static_cast<double>(p.pp);
  const double v = p.schedule == "interleaved" ? static_cast<double>(p.interleave) : 1;
  return m * v / (m * v + static_cast<double>(p.pp) - 1);
}

TrainCase divided(const TrainBenchOptions& bench, const std::string& model, int ranks, const std::string& layout) {
  TrainCase spec;
  spec.name = model;
  spec.model = model::preset(model).config;
  set_usual_shape(spec);
  if (bench.batch > 0) spec.batch = bench.batch;
  if (bench.seq > 0) spec.seq = bench.seq;
  spec.model.seq_len = spec.seq;
  spec.precision = bench.precision;
  spec.recompute = bench.recompute;
  spec.ranks = ranks;
  spec.threads = bench.threads.empty() ? std::max(1, usable_cores() / ranks) : bench.threads[0];
  spec.settings = layout_settings(layout);
  return spec;
}

class LayoutBench {
 public:
  LayoutBench(const TrainBenchOptions& bench, const std::string& model, int ranks, const std::string& folder)
      : bench_(bench) {
    TrainCase one = divided(bench, model, ranks, "");
    one.tokens = write_tokens(folder, one.model, one.tokens_per_step());
    const std::string tokens = one.tokens;
    title_ = fmt::format("{}: {} parameters, {} × {} tokens, {}", model, model::parameter_count(one.model), one.batch,
                         one.seq, one.precision);
    one.threads *= one.ranks;
    one.ranks = 1;
    candidates_.push_back(start_trainer("one process", one, listener_));
    for (const std::string& layout : bench.layouts) {
      TrainCase spec = divided(bench, model, ranks, layout);
      spec.tokens = tokens;
      candidates_.push_back(start_trainer(layout, spec, listener_));
    }
  }

  std::vector<Row> run() {
    for (BenchCandidate& candidate : candidates_) ask_steps(candidate, bench_.warmup);
    std::vector<std::vector<double>> waited(candidates_.size());
    for (int round = 0; round < bench_.rounds; ++round)
      for (size_t i = 0; i < candidates_.size(); ++i) {
        const size_t index = (i + static_cast<size_t>(round)) % candidates_.size();
        visit(candidates_[index], bench_.steps);
        waited[index].push_back(candidates_[index].mean_of("exposed"));
      }
    std::vector<Row> rows;
    for (size_t i = 0; i < candidates_.size(); ++i) rows.push_back(row_of(candidates_[i], median(waited[i])));
    // All layouts use the same model, seed and data: their losses must be equal.
    for (const Row& row : rows)
      if (std::abs(row.loss - rows[0].loss) > 1e-3 * std::abs(rows[0].loss))
        throw Error(ExitCode::internal, fmt::format("--layout {}: got loss {:.6f}; expected {:.6f}, as in one "
                                                    "process",
                                                    row.name, row.loss, rows[0].loss));
    candidates_.clear();  // releases the memory of the processes
    return rows;
  }

  const std::string& title() const { return title_; }
  std::string disturbed() const {
    return fmt::format(
        "CPU time lost during the measurement: {:.1f} % to other programs, {:.1f} % to the host (steal)\n",
        100 * load_.so_far().others, 100 * load_.so_far().host);
  }

 private:
  Row row_of(BenchCandidate& candidate, double waited_ms) const {
    Row row;
    row.name = candidate.name;
    row.step_s = median(candidate.step_s);
    row.of_one = speed_ratio(candidate, candidates_[0]);
    row.ideal = ideal_of(candidate.spec);
    row.waited_ms = waited_ms;
    row.ranks = candidate.spec.ranks;
    row.threads = candidate.spec.threads;
    row.loss = std::strtod(candidate.answer[0]["loss"].c_str(), nullptr);
    for (int rank = 0; rank < row.ranks; ++rank)
      row.peak_bytes = std::max(row.peak_bytes, peak_resident_bytes(candidate.job->processes().pid(rank)));
    return row;
  }

  const TrainBenchOptions& bench_;
  CpuLoad load_;
  RankListener listener_;
  std::vector<BenchCandidate> candidates_;  // the single process is the first
  std::string title_;
};

TrainRow train_row(const TrainCase& spec, const Row& row) {
  TrainRow out;
  out.library = "espalier " + row.name;
  out.model = spec.name;
  out.precision = spec.precision;
  out.step_ms = row.step_s * 1e3;
  out.tokens_per_s = static_cast<double>(spec.tokens_per_step()) / row.step_s;
  out.tflops = model::flops_per_token(spec.model, spec.seq) * out.tokens_per_s * 1e-12;
  out.peak_bytes = row.peak_bytes;
  out.parameters = model::parameter_count(spec.model);
  out.threads = row.threads;
  out.ranks = row.ranks;
  return out;
}

Cells cells_of(const TrainCase& spec, const Row& row, const Row& one) {
  const auto percent = [](double x) { return fmt::format("{:.1f} %", 100 * x); };
  const bool piped = row.ideal < 1;
  return {row.name,
          fmt::format("{} × {}", row.ranks, row.threads),
          fmt::format("{:.0f}", static_cast<double>(spec.tokens_per_step()) / row.step_s),
          fmt::format("{:.1f}", row.step_s * 1e3),
          percent(row.of_one),
          piped ? fmt::format("{} of {}", percent(row.of_one / row.ideal), percent(row.ideal)) : "",
          fmt::format("{:.1f}", row.waited_ms),
          fmt::format("{:.0f}", static_cast<double>(row.peak_bytes) / (1 << 20)),
          fmt::format("{:.2f}×", static_cast<double>(row.peak_bytes) / static_cast<double>(one.peak_bytes)),
          fmt::format("{:.5f}", row.loss)};
}

}  // namespace

std::vector<std::string> layout_settings(const std::string& layout) {
  std::vector<std::string> settings;
  for (size_t at = 0; at < layout.size();) {
    const size_t comma = std::min(layout.find(',', at), layout.size());
    const std::string one = layout.substr(at, comma - at);
    at = comma + 1;
    if (one.find('=') == std::string::npos)
      throw UsageError(
          fmt::format("--layout: got {}; expected key=value, for example tp=2 or pp=2,train.micro_batch=1", layout));
    settings.push_back(one.find('.') < one.find('=') ? one : "parallel." + one);
  }
  return settings;
}

int run_bench_layouts(const TrainBenchOptions& bench, const std::string& folder) {
  std::string markdown;
  Json rows_out = Json::array();
  for (const std::string& model : bench.models)
    for (int ranks : bench.nproc) {
      LayoutBench layouts(bench, model, ranks, folder);
      fmt::print("\n{}\n", Style(stdout).bold(layouts.title()));
      std::fflush(stdout);
      const TrainCase spec = divided(bench, model, ranks, "");
      const std::vector<Row> rows = layouts.run();
      std::vector<Cells> cells;
      for (const Row& row : rows) {
        cells.push_back(cells_of(spec, row, rows[0]));
        rows_out.push_back(to_json(train_row(spec, row)));
      }
      fmt::print("{}{}", text_table(kHead, cells), layouts.disturbed());
      std::fflush(stdout);
      markdown += fmt::format("### {}\n\n{}\n{}\n", layouts.title(), markdown_table(kHead, cells), layouts.disturbed());
    }
  if (!bench.json.empty()) write_file(bench.json, rows_out.dump(1) + "\n");
  if (!bench.markdown.empty()) write_file(bench.markdown, markdown);
  return static_cast<int>(ExitCode::done);
}

}  // namespace esp::app
