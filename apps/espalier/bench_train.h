// What `bench train` was asked to do, and the rows it gives: training steps of one model, ours and the rivals', one
// after the other in one run.
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
  int64_t batch = 0, seq = 0;  // 0: what the model is usually measured with
  std::string precision = "fp32", recompute = "none";
  std::vector<int> threads;  // of a rank; empty: all usable cores, shared out among the ranks
  std::vector<int> nproc = {1};
  std::vector<std::string> sync = {"allreduce"};  // with several ranks: the methods compared, the first against rivals
  int64_t power_rank = 0;                         // of PowerSGD, ours and a rival's; 0: gradients travel as they are
  int steps = 5, rounds = 3, warmup = 2;
  std::vector<std::string> peers;
  std::vector<std::string> layouts;  // one model divided: these against one process
  std::string llmc, python, json, markdown;
};

// One model at one batch on so many ranks and threads: what a contender runs.
struct TrainCase {
  std::string name;  // the preset's
  model::ModelConfig model;
  int64_t batch = 0, seq = 0;                                  // batch: of all ranks together
  int threads = 1, ranks = 1;                                  // threads: of each rank
  std::string precision = "fp32", recompute = "none", tokens;  // tokens: a file of u16
  std::string sync = "allreduce";
  int64_t power_rank = 0;
  std::vector<std::string> settings;  // of our own runs: further section.key=value
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

// A rival: how its processes are started for a case.
struct TrainRival {
  std::string_view name, help;
  // Throws UsageError where it is not there or cannot run the case.
  launch::LocalOptions (*start)(const TrainBench& bench, const TrainCase& it, const Switchboard& board);
};
std::span<const TrainRival> train_rivals();

// llm.c's CPU program takes no orders: it is run once and its own lines are read. Seconds per step, the peak of its
// resident memory, and how many activations it says it keeps (0: it did not say), which tells batch and length.
struct LlmcResult {
  std::vector<double> step_s;
  double loss = 0;  // of the last step
  uint64_t peak_bytes = 0, activations = 0;
};
LlmcResult run_llmc(const std::string& program, int threads, int steps, Deadline deadline);
// "step 3: train loss 4.1 (took 812.5 ms)" adds 0.8125 s and the loss, "num_activations: 12" the number; other lines
// nothing.
void read_llmc_line(const std::string& line, LlmcResult& result);
uint64_t llmc_activations(const TrainCase& it);

// Highest resident bytes of a process so far, 0 when it is gone.
uint64_t peak_resident_bytes(int pid);
// Where OpenBLAS with OpenMP threads lies on this machine; empty: nowhere we know.
std::string openmp_blas_folder();
// How the shapes most often compared are run: sequences and tokens in each.
void set_usual_shape(TrainCase& it);
// A file of random tokens for the model, at least `least` of them, in a folder; the path.
std::string write_tokens(const std::string& folder, const model::ModelConfig& model, int64_t least);
// One per line: the processes that `bench train` starts of this same program.
launch::LocalOptions our_trainer(const TrainCase& it, const Switchboard& board);
launch::LocalOptions our_products(int threads, const std::string& blas, const Switchboard& board);

inline constexpr int64_t kProductSize = 2048;  // of the square products a step's rate is held against

}  // namespace esp::app
