#include "apps/espalier/bench_train_case.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/espalier/bench_comm.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/model/counts.h"

namespace esp::app {
namespace {

// "espalier" is the run that all-reduces gradients; other methods are named.
std::string our_name(const std::string& method) {
  return method == "allreduce" ? "espalier" : "espalier-" + method;
}

// One rank with its share of the batch: the ideal of perfect scaling.
TrainCase alone(const TrainCase& it) {
  TrainCase one = it;
  one.ranks = 1;
  one.batch = it.batch / it.ranks;
  one.sync = "allreduce";
  return one;
}

class CaseBench {
 public:
  CaseBench(const TrainBench& bench, const TrainCase& it) : bench_(bench), it_(it) {
    for (const std::string& method : it.ranks > 1 ? bench.sync : std::vector<std::string>{"allreduce"}) {
      TrainCase ours = it;
      ours.sync = method;
      candidates_.push_back(start_trainer(our_name(method), ours, board_));
    }
    if (it.ranks > 1) candidates_.push_back(start_trainer("espalier", alone(it), board_));
    num_ours_ = candidates_.size();
    for (const std::string& peer : bench.peers)
      if (peer != "llm.c")
        candidates_.push_back(
            start_candidate(peer, it, find_row("peer", train_baselines(), peer).start(bench, it, board_), board_));
    num_trainers_ = candidates_.size();
    const int threads = it.ranks * it.threads;
    candidates_.push_back(start_candidate("sgemm", it, our_products(threads, "", board_), board_));
    if (const std::string folder = openmp_blas_folder(); !folder.empty())
      candidates_.push_back(
          start_candidate("openblas", it, our_products(threads, folder + "/libopenblas.so.0", board_), board_));
  }

  CaseResult run() {
    for (size_t i = 0; i < num_trainers_; ++i) ask_steps(candidates_[i], bench_.warmup);
    for (int round = 0; round < bench_.rounds; ++round)
      for (size_t i = 0; i < candidates_.size(); ++i)
        visit_in_turn((i + static_cast<size_t>(round)) % candidates_.size());
    CaseResult result;
    result.it = it_;
    result.ceilings = ceilings();
    for (size_t i = 0; i < num_trainers_; ++i) result.rows.push_back(measured(i, result.ceilings));
    candidates_.clear();  // ends all processes before llm.c runs
    add_llmc(result);
    result.disturbed = load_.so_far();
    return result;
  }

 private:
  void visit_in_turn(size_t index) {
    constexpr int kProducts = 5;
    Candidate& candidate = candidates_[index];
    visit(candidate, index < num_trainers_ ? bench_.steps : kProducts);
    const bench::Words& words = candidate.answer[0];
    if (const auto peak = words.find("peak"); peak != words.end())
      peaks_.push_back(std::strtod(peak->second.c_str(), nullptr));
    if (exposed_ms_.size() < num_ours_) exposed_ms_.resize(num_ours_);
    if (index < num_ours_) exposed_ms_[index].push_back(candidate.mean_of("exposed"));
  }

  Ceilings ceilings() {
    Ceilings out;
    const double flops = 2.0 * kProductSize * kProductSize * kProductSize;
    for (const Candidate& candidate : candidates_) {
      if (candidate.name == "sgemm") out.ours = flops / median(candidate.step_s);
      if (candidate.name != "openblas") continue;
      out.openblas = flops / median(candidate.step_s);
      out.openblas_core = candidate.job->hello(0).at("core");
    }
    out.peak = median(peaks_);
    return out;
  }

  // Fills the rates of a row from step times; a candidate with fewer ranks is compared with its share of the peak.
  Measured rated(const std::string& library, const TrainCase& it, double step_s, const Ceilings& ceilings) const {
    Measured out;
    TrainRow& row = out.row;
    row.library = library;
    row.model = it.name;
    row.precision = it.precision;
    row.threads = it.threads;
    row.ranks = it.ranks;
    row.step_ms = step_s * 1e3;
    row.tokens_per_s = static_cast<double>(it.tokens_per_step()) / step_s;
    row.tflops = model::flops_per_token(it.model, it.seq) * row.tokens_per_s * 1e-12;
    const double share = static_cast<double>(it.ranks) / it_.ranks;
    row.mfu = row.tflops * 1e12 / (ceilings.peak * share);
    out.of_sgemm = row.tflops * 1e12 / (ceilings.best() * share);
    row.parameters = model::parameter_count(it.model);
    return out;
  }

  Measured measured(size_t index, const Ceilings& ceilings) const {
    const Candidate& candidate = candidates_[index];
    bench::Words hello = candidate.job->hello(0), words = candidate.answer[0];
    Measured out = rated(candidate.name, candidate.it, median(candidate.step_s), ceilings);
    if (const int64_t built = std::atoll(hello["parameters"].c_str()); built != out.row.parameters)
      throw Error(ExitCode::internal, fmt::format("{} built {} parameters, not {}: it is not the same model",
                                                  candidate.name, built, out.row.parameters));
    for (int rank = 0; rank < candidate.it.ranks; ++rank)
      out.row.peak_bytes += peak_resident_bytes(candidate.job->processes().pid(rank));
    if (index > 0) out.our_speed = speed_ratio(candidates_[0], candidate);
    if (index < num_ours_) out.exposed_ms = median(exposed_ms_[index]);
    out.pool_bytes = std::strtoull(words["pool"].c_str(), nullptr, 10);
    out.loss = std::strtod(words["loss"].c_str(), nullptr);
    if (hello.count("blas")) out.about = fmt::format("{}, BLAS {}", hello["version"], hello["blas"]);
    return out;
  }

  void add_llmc(CaseResult& result) const {
    if (bench_.llmc.empty() || it_.name != "gpt2-124m" || it_.ranks > 1) return;
    const int steps = 1 + bench_.steps * bench_.rounds;
    const LlmcResult run = run_llmc(bench_.llmc, it_.threads, steps, Deadline::after(std::chrono::minutes(10)));
    if (const uint64_t expected = llmc_activations(it_); run.activations && run.activations != expected)
      throw UsageError(
          fmt::format("--llmc {}: it keeps {} activations where {} × {} tokens have {}; set B and T in its "
                      "main and build it anew",
                      bench_.llmc, run.activations, it_.batch, it_.seq, expected));
    Measured out = rated("llm.c", it_, median(run.step_s), result.ceilings);
    out.our_speed = out.row.step_ms / result.rows[0].row.step_ms;  // no rounds in common
    out.row.peak_bytes = run.peak_bytes;
    out.loss = run.loss;
    out.about = fmt::format("{}, {} of its steps after ours", bench_.llmc, run.step_s.size());
    result.rows.push_back(std::move(out));
  }

  const TrainBench& bench_;
  const TrainCase& it_;
  CpuLoad load_;
  Switchboard board_;
  std::vector<Candidate> candidates_;  // this program, baselines, GEMMs
  size_t num_ours_ = 0, num_trainers_ = 0;
  std::vector<double> peaks_;
  std::vector<std::vector<double>> exposed_ms_;  // by method of this program, by round
};

}  // namespace

double Ceilings::best() const {
  return std::max(ours, openblas);
}

CaseResult run_case(const TrainBench& bench, const TrainCase& it) {
  return CaseBench(bench, it).run();
}

}  // namespace esp::app
