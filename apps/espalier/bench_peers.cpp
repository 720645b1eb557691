// espalier bench comm --peers: measures the same sizes with other libraries, in the same process.
//
// All jobs of one world size are started first; their ranks then block in read(). For each operation and size, one
// library after another is measured (a visit), in several rounds of changing order, so that disturbances of the machine
// affect all of them. The core-to-core latency (near or far) is probed before and after each visit. A visit during
// which this state changed is discarded. Only visits in the same state are compared.
#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/baselines.h"
#include "apps/espalier/bench_comm.h"
#include "apps/espalier/core_state.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"

namespace esp::app {
namespace {

struct ComparedLibrary {
  std::string library, variant, transport;
  BenchJob* job = nullptr;
  std::string title() const { return library == "espalier" ? library : fmt::format("{} {}", library, variant); }
};

// Result of one library for one operation and size.
struct LibrarySamples {
  std::map<bool, std::vector<double>> samples_us;  // keyed by core state: true is near, false far
  std::string refused;
  uint64_t wrong = 0;
  double estimate_us = 0;
  std::vector<bench::Words> words;
};

struct Comparison {
  std::string op;
  size_t bytes = 0;
  int ranks = 0;
  std::vector<LibrarySamples> samples_by_library;  // in the order of the compared libraries; Espalier is first
};

void visit(const CommBenchOptions& bench, ComparedLibrary& candidate, bench::Request request, LibrarySamples& cell) {
  Deadline deadline = Deadline::after(std::chrono::seconds(240));
  if (cell.estimate_us == 0) {  // the first visit verifies the results and estimates the time per call
    request.check = bench.check != 0;
    request.warmup = 1, request.samples = 1, request.batch = 1;
    BenchResult first = candidate.job->execute(request, deadline);
    if (!first.ran) {
      cell.refused = first.refusal;
      return;
    }
    cell.wrong += first.wrong;
    cell.estimate_us = std::max(0.1, first.sample_us.at(0));
    request.check = false;
  }
  // All libraries get the same calls per sample, unless a sample would take more than a quarter of a second.
  double fits = std::max(1.0, 250e3 / cell.estimate_us);
  request.batch = static_cast<int>(std::min<double>(batch_for(bench, request.bytes), fits));
  double wanted = bench.visit_ms * 1000.0 / (cell.estimate_us * request.batch);
  request.samples = static_cast<int>(std::clamp(wanted, 3.0, 200.0));
  request.warmup = static_cast<int>(std::min<double>(bench.warmup, fits));
  CoreState before = probe_cores();
  BenchResult answer = candidate.job->execute(request, deadline);
  CoreState after = probe_cores();
  cell.words = answer.words;
  cell.estimate_us = std::max(0.1, median(answer.sample_us));
  if (before.near != after.near) return;
  auto& samples = cell.samples_us[before.near];
  samples.insert(samples.end(), answer.sample_us.begin(), answer.sample_us.end());
}

// Ends after `rounds` rounds if every library then has samples in the near state, at the latest after 2·rounds rounds.
Comparison compare(const CommBenchOptions& bench, std::vector<ComparedLibrary>& candidates,
                   const bench::Request& request) {
  Comparison result{request.op, request.bytes, candidates[0].job->num_ranks(),
                    std::vector<LibrarySamples>(candidates.size())};
  for (int round = 0; round < 2 * bench.rounds; ++round) {
    bool settled = round >= bench.rounds;
    for (const LibrarySamples& cell : result.samples_by_library)
      if (cell.refused.empty() && !cell.samples_us.contains(true)) settled = false;
    if (settled) break;
    for (size_t i = 0; i < candidates.size(); ++i) {
      size_t index = (i + static_cast<size_t>(round)) % candidates.size();
      if (result.samples_by_library[index].refused.empty())
        visit(bench, candidates[index], request, result.samples_by_library[index]);
    }
  }
  return result;
}

std::optional<double> time_of(const LibrarySamples& cell, bool near) {
  auto it = cell.samples_us.find(near);
  if (it == cell.samples_us.end() || it->second.empty()) return std::nullopt;
  return median(it->second);
}

// Index of the fastest baseline in this core state; nullopt: no baseline has samples in it.
std::optional<size_t> best_baseline(const Comparison& comparison, bool near) {
  std::optional<size_t> best;
  for (size_t i = 1; i < comparison.samples_by_library.size(); ++i)
    if (auto time = time_of(comparison.samples_by_library[i], near))
      if (!best || *time < *time_of(comparison.samples_by_library[*best], near)) best = i;
  return best;
}

// Formats microseconds or a ratio with three digits.
std::string digits(double us) {
  return us >= 100 ? fmt::format("{:.0f}", us) : us >= 10 ? fmt::format("{:.1f}", us) : fmt::format("{:.2f}", us);
}

// One table row: the size, Espalier's time, each baseline's time with its ratio to Espalier's, and the fastest
// baseline. Empty if Espalier has no samples in this state of the core-to-core latency (`near`: near or far).
Cells comparison_row(const Comparison& comparison, const std::vector<ComparedLibrary>& candidates, bool near) {
  std::optional<double> espalier = time_of(comparison.samples_by_library[0], near);
  if (!espalier) return {};
  Cells row = {human_bytes(comparison.bytes), digits(*espalier)};
  for (size_t i = 1; i < candidates.size(); ++i) {
    std::optional<double> time = time_of(comparison.samples_by_library[i], near);
    row.push_back(time ? fmt::format("{} ({}×)", digits(*time), digits(*time / *espalier)) : "–");
  }
  std::optional<size_t> best = best_baseline(comparison, near);
  row.push_back(best ? fmt::format("{:.2f}× {}", *time_of(comparison.samples_by_library[*best], near) / *espalier,
                                   candidates[*best].title())
                     : "–");
  return row;
}

Cells comparison_head(const std::vector<ComparedLibrary>& candidates) {
  Cells head = {"size", "espalier"};
  for (size_t i = 1; i < candidates.size(); ++i) head.push_back(candidates[i].title());
  head.push_back("best baseline / espalier");
  return head;
}

CommRow json_row(const ComparedLibrary& candidate, const Comparison& comparison, const LibrarySamples& cell,
                 const bench::Request& request) {
  bool near = cell.samples_us.contains(true);
  auto it = cell.samples_us.find(near);
  CommRow row = make_row(candidate.library, request, comparison.ranks,
                         it == cell.samples_us.end() ? std::vector<double>{} : it->second);
  row.algo = candidate.variant, row.transport = candidate.transport;
  row.correct = cell.wrong == 0;
  if (candidate.library == "espalier") add_report(row, cell.words);
  return row;
}

class Report {
 public:
  explicit Report(const CommBenchOptions& bench) : bench_(bench) {}

  void open_table(const std::string& op, const std::vector<ComparedLibrary>& candidates, int ranks) {
    title_ = fmt::format("{}, {} ranks on {} cores, transport {}{}", op, ranks, usable_cores(), bench_.transport,
                         bench_.registered ? ", registered buffers" : "");
    CoreState state = probe_cores();
    fmt::print("\n{}; core-to-core latency {} ({:.0f} ns); medians in µs\n{}", Style(stdout).bold(title_), state.name(),
               state.ns, text_line(comparison_head(candidates), kColumn));
    near_.clear();
    far_.clear();
  }

  void add(const Comparison& comparison, const std::vector<ComparedLibrary>& candidates,
           const bench::Request& request) {
    for (bool near : {true, false}) {
      Cells row = comparison_row(comparison, candidates, near);
      if (row.empty()) continue;
      (near ? near_ : far_).push_back(row);
      if (!near) row.push_back("(cores far)");
      fmt::print("{}", text_line(row, kColumn));
    }
    for (size_t i = 0; i < candidates.size(); ++i) {
      const LibrarySamples& cell = comparison.samples_by_library[i];
      if (!cell.refused.empty()) continue;
      rows_.push_back(json_row(candidates[i], comparison, cell, request));
      if (cell.wrong == 0) continue;
      fmt::print("  {}: {} wrong elements\n", candidates[i].title(), cell.wrong);
      if (i == 0) wrong_ += cell.wrong;
    }
    std::fflush(stdout);
  }

  void close_table(const std::vector<ComparedLibrary>& candidates) {
    markdown_ += fmt::format("### {}\n\n", title_);
    Cells head = comparison_head(candidates);
    if (!near_.empty()) markdown_ += fmt::format("Cores near, medians in µs:\n\n{}\n", markdown_table(head, near_));
    if (!far_.empty()) markdown_ += fmt::format("Cores far, medians in µs:\n\n{}\n", markdown_table(head, far_));
  }

  int finish() {
    if (!bench_.markdown.empty()) write_file(bench_.markdown, markdown_);
    if (!bench_.json.empty()) {
      Json out = Json::array();
      for (const CommRow& row : rows_) out.push_back(to_json(row));
      write_file(bench_.json, out.dump(1) + "\n");
    }
    if (!bench_.csv.empty()) {
      std::string out = csv_header();
      for (const CommRow& row : rows_) out += to_csv(row);
      write_file(bench_.csv, out);
    }
    return static_cast<int>(wrong_ ? ExitCode::internal : ExitCode::done);
  }

 private:
  const CommBenchOptions& bench_;
  static constexpr size_t kColumn = 17;
  std::string title_, markdown_;
  std::vector<Cells> near_, far_;
  std::vector<CommRow> rows_;
  uint64_t wrong_ = 0;
};

void compare_world(const CommBenchOptions& bench, int ranks, const std::vector<const BaselineRow*>& rows,
                   Report& report) {
  obs::TemporaryFolder folder;
  RankListener listener;
  Deadline start = Deadline::after(std::chrono::seconds(120));
  EspalierJob espalier = start_espalier(bench, ranks, listener, start);
  std::vector<std::unique_ptr<BenchJob>> jobs;
  std::vector<ComparedLibrary> candidates = {{"espalier", "", bench.transport, espalier.ranks.get()}};
  for (const BaselineRow* row : rows) {
    try {
      jobs.push_back(start_baseline(*row, ranks, listener, folder.path(), start));
    } catch (const CommError& error) {
      // A library that fails to start is reported and skipped.
      fmt::print(stderr, "--peers: skipped a library that did not start: {}\n", error.what());
      continue;
    }
    candidates.push_back(
        {std::string(row->library), std::string(row->variant), std::string(row->transport), jobs.back().get()});
  }
  if (jobs.empty()) throw UsageError("--peers: no library could be started; stderr has the reason for each");
  for (const std::string& op : bench.ops) {
    report.open_table(op, candidates, ranks);
    for (size_t bytes : sweep(bench)) {
      bench::Request request{op, bench.dtypes[0], bench.reduce_ops[0], bench.algorithm, bytes, bench.root};
      request.registered = bench.registered;
      report.add(compare(bench, candidates, request), candidates, request);
    }
    report.close_table(candidates);
  }
}

}  // namespace

int run_comparison(const CommBenchOptions& bench) {
  std::vector<const BaselineRow*> rows = choose_baselines(bench.peers);
  Report report(bench);
  for (int ranks : bench.nproc) compare_world(bench, ranks, rows, report);
  return report.finish();
}

}  // namespace esp::app
