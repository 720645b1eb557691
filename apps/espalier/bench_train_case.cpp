#include "apps/espalier/bench_train_case.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/espalier/bench_comm.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/model/counts.h"

namespace esp::app {
namespace {

// Row label: "espalier" for the sync method allreduce; other sync methods are appended to it.
std::string method_label(const std::string& method) {
  return method == "allreduce" ? "espalier" : "espalier-" + method;
}

// The same case for one rank with its share of the global batch. With perfect scaling, every rank reaches this speed.
TrainCase single_rank_share(const TrainCase& spec) {
  TrainCase one = spec;
  one.ranks = 1;
  one.batch = spec.batch / spec.ranks;
  one.sync = "allreduce";
  return one;
}

class CaseBench {
 public:
  CaseBench(const TrainBenchOptions& bench, const TrainCase& spec) : bench_(bench), spec_(spec) {
    for (const std::string& method : spec.ranks > 1 ? bench.sync : std::vector<std::string>{"allreduce"}) {
      TrainCase ours = spec;
      ours.sync = method;
      candidates_.push_back(start_trainer(method_label(method), ours, listener_));
    }
    if (spec.ranks > 1) candidates_.push_back(start_trainer("espalier", single_rank_share(spec), listener_));
    num_espalier_ = candidates_.size();
    for (const std::string& peer : bench.peers)
      if (peer != "llm.c")
        candidates_.push_back(start_candidate(
            peer, spec, find_row("peer", train_baselines(), peer).start(bench, spec, listener_), listener_));
    num_trainers_ = candidates_.size();
    const int threads = spec.ranks * spec.threads;
    candidates_.push_back(start_candidate("sgemm", spec, espalier_gemm(threads, "", listener_), listener_));
    if (const std::string folder = openmp_blas_folder(); !folder.empty())
      candidates_.push_back(start_candidate(
          "openblas", spec, espalier_gemm(threads, folder + "/libopenblas.so.0", listener_), listener_));
  }

  CaseResult run() {
    for (size_t i = 0; i < num_trainers_; ++i) ask_steps(candidates_[i], bench_.warmup);
    for (int round = 0; round < bench_.rounds; ++round)
      for (size_t i = 0; i < candidates_.size(); ++i)
        visit_in_turn((i + static_cast<size_t>(round)) % candidates_.size());
    CaseResult result;
    result.spec = spec_;
    result.ceilings = ceilings();
    for (size_t i = 0; i < num_trainers_; ++i) result.rows.push_back(measured(i, result.ceilings));
    candidates_.clear();  // ends all processes before llm.c runs
    add_llmc(result);
    result.disturbed = load_.so_far();
    return result;
  }

 private:
  void visit_in_turn(size_t index) {
    constexpr int kGemms = 5;
    BenchCandidate& candidate = candidates_[index];
    visit(candidate, index < num_trainers_ ? bench_.steps : kGemms);
    const bench::Words& words = candidate.answer[0];
    if (const auto peak = words.find("peak"); peak != words.end())
      peaks_.push_back(std::strtod(peak->second.c_str(), nullptr));
    if (exposed_ms_.size() < num_espalier_) exposed_ms_.resize(num_espalier_);
    if (index < num_espalier_) exposed_ms_[index].push_back(candidate.mean_of("exposed"));
  }

  Ceilings ceilings() {
    Ceilings out;
    const double flops = 2.0 * kGemmSize * kGemmSize * kGemmSize;
    for (const BenchCandidate& candidate : candidates_) {
      if (candidate.name == "sgemm") out.ours = flops / median(candidate.step_s);
      if (candidate.name != "openblas") continue;
      out.openblas = flops / median(candidate.step_s);
      out.openblas_core = candidate.job->registration(0).at("core");
    }
    out.peak = median(peaks_);
    return out;
  }

  // Computes the rates of a row from the step time. A candidate with fewer ranks is compared with its share of the
  // peak.
  Measured rated(const std::string& library, const TrainCase& spec, double step_s, const Ceilings& ceilings) const {
    Measured out;
    TrainRow& row = out.row;
    row.library = library;
    row.model = spec.name;
    row.precision = spec.precision;
    row.threads = spec.threads;
    row.ranks = spec.ranks;
    row.step_ms = step_s * 1e3;
    row.tokens_per_s = static_cast<double>(spec.tokens_per_step()) / step_s;
    row.tflops = model::flops_per_token(spec.model, spec.seq) * row.tokens_per_s * 1e-12;
    const double share = static_cast<double>(spec.ranks) / spec_.ranks;
    row.mfu = row.tflops * 1e12 / (ceilings.peak * share);
    out.of_sgemm = row.tflops * 1e12 / (ceilings.best() * share);
    row.parameters = model::parameter_count(spec.model);
    return out;
  }

  Measured measured(size_t index, const Ceilings& ceilings) const {
    const BenchCandidate& candidate = candidates_[index];
    bench::Words registration = candidate.job->registration(0), words = candidate.answer[0];
    Measured out = rated(candidate.name, candidate.spec, median(candidate.step_s), ceilings);
    if (const int64_t built = std::atoll(registration["parameters"].c_str()); built != out.row.parameters)
      throw Error(ExitCode::internal, fmt::format("{}: got a model of {} parameters; expected {}", candidate.name,
                                                  built, out.row.parameters));
    for (int rank = 0; rank < candidate.spec.ranks; ++rank)
      out.row.peak_bytes += peak_resident_bytes(candidate.job->processes().pid(rank));
    if (index > 0) out.speed_vs_espalier = speed_ratio(candidates_[0], candidate);
    if (index < num_espalier_) out.exposed_ms = median(exposed_ms_[index]);
    out.pool_bytes = std::strtoull(words["pool"].c_str(), nullptr, 10);
    out.loss = std::strtod(words["loss"].c_str(), nullptr);
    if (registration.count("blas"))
      out.about = fmt::format("{}, BLAS {}", registration["version"], registration["blas"]);
    return out;
  }

  void add_llmc(CaseResult& result) const {
    if (bench_.llmc.empty() || spec_.name != "gpt2-124m" || spec_.ranks > 1) return;
    const int steps = 1 + bench_.steps * bench_.rounds;
    const LlmcResult run = run_llmc(bench_.llmc, spec_.threads, steps, Deadline::after(std::chrono::minutes(10)));
    if (const uint64_t expected = llmc_activations(spec_); run.activations && run.activations != expected)
      throw UsageError(
          fmt::format("--llmc {}: got a build with {} activations; a batch of {} × {} tokens needs {}. Set B and T in "
                      "its main function and rebuild it",
                      bench_.llmc, run.activations, spec_.batch, spec_.seq, expected));
    Measured out = rated("llm.c", spec_, median(run.step_s), result.ceilings);
    out.speed_vs_espalier = out.row.step_ms / result.rows[0].row.step_ms;  // llm.c was not measured in the same rounds
    out.row.peak_bytes = run.peak_bytes;
    out.loss = run.loss;
    out.about = fmt::format("{}, {} steps, measured after the other candidates", bench_.llmc, run.step_s.size());
    result.rows.push_back(std::move(out));
  }

  const TrainBenchOptions& bench_;
  const TrainCase& spec_;
  CpuLoad load_;
  RankListener listener_;
  std::vector<BenchCandidate> candidates_;  // order: Espalier's candidates, baselines, GEMM loops
  size_t num_espalier_ = 0, num_trainers_ = 0;
  std::vector<double> peaks_;
  std::vector<std::vector<double>> exposed_ms_;  // indexed by Espalier's sync method, then by round
};

}  // namespace

double Ceilings::best() const {
  return std::max(ours, openblas);
}

CaseResult run_case(const TrainBenchOptions& bench, const TrainCase& spec) {
  return CaseBench(bench, spec).run();
}

}  // namespace esp::app
