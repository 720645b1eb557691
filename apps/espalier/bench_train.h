// Options and result rows of `bench train`: training steps of one model, by this program and by the baselines, in turn
// in one run.
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

struct TrainBench {
  std::vector<std::string> models = {"gpt-6x384"};
  int64_t batch = 0, seq = 0;  // 0: the usual values of the model
  std::string precision = "fp32", recompute = "none";
  std::vector<int> threads;  // per rank; empty: all usable cores, divided over the ranks
  std::vector<int> nproc = {1};
  // with several ranks: the methods compared, the first against the baselines
  std::vector<std::string> sync = {"allreduce"};
  int64_t power_rank = 0;  // of PowerSGD, here and in a baseline; 0: no compression
  int steps = 5, rounds = 3, warmup = 2;
  std::vector<std::string> peers;
  std::vector<std::string> layouts;  // layouts of one model over ranks, compared with one process
  std::string llmc, python, json, markdown;
};

// One model at one batch on given ranks and threads: the unit that a candidate runs.
struct TrainCase {
  std::string name;  // of the preset
  model::ModelConfig model;
  int64_t batch = 0, seq = 0;                                  // batch: of all ranks together
  int threads = 1, ranks = 1;                                  // threads: of each rank
  std::string precision = "fp32", recompute = "none", tokens;  // tokens: a file of u16
  std::string sync = "allreduce";
  int64_t power_rank = 0;
  std::vector<std::string> settings;  // of this program's runs: further section.key=value
  int64_t tokens_per_step() const { return batch * seq; }
};

// As INTERFACE's `bench train --json` names it.
struct TrainRow {
  std::string library, model, precision;
  double tokens_per_s = 0, step_ms = 0, tflops = 0, mfu = 0;
  uint64_t peak_bytes = 0;  // resident, of whole processes, summed over the ranks
  int64_t parameters = 0;
  int threads = 1, ranks = 1;
};
Json to_json(const TrainRow& row);

// A baseline: how its processes are started for a case.
struct TrainBaseline {
  std::string_view name, help;
  // Throws UsageError if it is not installed or cannot run the case.
  launch::LocalOptions (*start)(const TrainBench& bench, const TrainCase& it, const Switchboard& board);
};
std::span<const TrainBaseline> train_baselines();

// llm.c's CPU program takes no requests: it is run once and its output is parsed. Seconds per step, the peak of its
// resident memory, and the number of activations it reports (0: none), which determines batch and length.
struct LlmcResult {
  std::vector<double> step_s;
  double loss = 0;  // of the last step
  uint64_t peak_bytes = 0, activations = 0;
};
LlmcResult run_llmc(const std::string& program, int threads, int steps, Deadline deadline);
// "step 3: train loss 4.1 (took 812.5 ms)" appends 0.8125 s and sets the loss, "num_activations: 12" sets the number;
// other lines are ignored.
void read_llmc_line(const std::string& line, LlmcResult& result);
uint64_t llmc_activations(const TrainCase& it);

// Peak resident bytes of a process so far; 0 if it has ended.
uint64_t peak_resident_bytes(int pid);
// Path of OpenBLAS with OpenMP threads on this machine; empty: not found.
std::string openmp_blas_folder();
// Usual sequences and tokens per model.
void set_usual_shape(TrainCase& it);
// Writes a file of at least `least` random tokens for the model into a folder; returns the path.
std::string write_tokens(const std::string& folder, const model::ModelConfig& model, int64_t least);
// One per line: the processes of this program that `bench train` starts.
launch::LocalOptions our_trainer(const TrainCase& it, const Switchboard& board);
launch::LocalOptions our_products(int threads, const std::string& blas, const Switchboard& board);

inline constexpr int64_t kProductSize = 2048;  // size of the square GEMM that is the reference rate of a step

}  // namespace esp::app
