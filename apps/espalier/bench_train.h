// Options and result rows of `bench train`: training steps of one model by Espalier and the baselines, measured in
// turn.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/espalier/bench_job.h"
#include "esp/base/json.h"
#include "esp/model/config.h"

namespace esp::app {

struct TrainBenchOptions {
  std::vector<std::string> models = {"gpt-6x384"};
  int64_t batch = 0, seq = 0;  // 0: the model's default
  std::string precision = "fp32", recompute = "none";
  std::vector<int> threads;  // per rank; empty: all usable cores, divided over the ranks
  std::vector<int> nproc = {1};
  // sync methods to compare if there are several ranks; only the first is compared with the baselines
  std::vector<std::string> sync = {"allreduce"};
  int64_t power_rank = 0;  // rank of PowerSGD, in Espalier and in the baseline; 0: no compression
  int steps = 5, rounds = 3, warmup = 2;
  std::vector<std::string> peers;
  std::vector<std::string> layouts;  // parallel layouts, each compared with one process
  std::string llmc, python, json, markdown;
};

// One model with a batch size, ranks and threads: what one candidate runs.
struct TrainCase {
  std::string name;  // name of the model preset
  model::ModelConfig model;
  int64_t batch = 0, seq = 0;                                  // batch: sequences per step, summed over all ranks
  int threads = 1, ranks = 1;                                  // threads: per rank
  std::string precision = "fp32", recompute = "none", tokens;  // tokens: path of a file of u16 token ids
  std::string sync = "allreduce";
  int64_t power_rank = 0;
  std::vector<std::string> settings;  // Espalier only: additional run-file settings, section.key=value
  int64_t tokens_per_step() const { return batch * seq; }
};

// One result, with the fields of `bench train --json`.
struct TrainRow {
  std::string library, model, precision;
  double tokens_per_s = 0, step_ms = 0, tflops = 0, mfu = 0;
  uint64_t peak_bytes = 0;  // peak resident memory of the processes, summed over the ranks
  int64_t parameters = 0;
  int threads = 1, ranks = 1;
};
Json to_json(const TrainRow& row);

// A baseline: how its processes are started for a case.
struct TrainBaseline {
  std::string_view name, help;
  // Returns the launch options of its processes. UsageError: the baseline is not installed, or does not support the
  // case.
  launch::LocalOptions (*start)(const TrainBenchOptions& bench, const TrainCase& spec, const RankListener& listener);
};
std::span<const TrainBaseline> train_baselines();

// Result of llm.c's CPU program. The program takes no requests: it runs once, and its output is parsed. `activations`
// is the number that it prints (0: not printed), which depends on the batch size and the sequence length.
struct LlmcResult {
  std::vector<double> step_s;                // seconds of each step
  double loss = 0;                           // loss of the last step
  uint64_t peak_bytes = 0, activations = 0;  // peak_bytes: peak resident memory
};
LlmcResult run_llmc(const std::string& program, int threads, int steps, Deadline deadline);
// Parses one line. "step 3: train loss 4.1 (took 812.5 ms)" appends 0.8125 s and sets the loss; "num_activations: 12"
// sets that number; other lines are ignored.
void read_llmc_line(const std::string& line, LlmcResult& result);
uint64_t llmc_activations(const TrainCase& spec);

// Peak resident bytes of a process so far; 0 if it has ended.
uint64_t peak_resident_bytes(int pid);
// Folder of OpenBLAS with OpenMP threads; empty: not found.
std::string openmp_blas_folder();
// Sets the default batch size and sequence length of the model.
void set_usual_shape(TrainCase& spec);
// Writes a file of at least `least` random tokens for the model into a folder; returns the path.
std::string write_tokens(const std::string& folder, const model::ModelConfig& model, int64_t least);
// Launch options of Espalier's worker processes: a trainer, and a loop of GEMMs with Espalier's sgemm or that of
// another BLAS.
launch::LocalOptions espalier_trainer(const TrainCase& spec, const RankListener& listener);
launch::LocalOptions espalier_gemm(int threads, const std::string& blas, const RankListener& listener);

inline constexpr int64_t kGemmSize = 2048;  // m = n = k of the square GEMM whose rate is the reference for a step

}  // namespace esp::app
