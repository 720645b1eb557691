// RunReporter: writes the reports of a run: step lines, metrics.jsonl, TensorBoard events, and at the end summary.json
// and ranks/rank-K.json. Rank 0 writes the reports of the whole run. Every rank writes its own rank file: memory and
// traffic every few seconds, and the complete file at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "esp/device/memory.h"
#include "esp/train/comm_stats.h"
#include "esp/train/engine.h"
#include "esp/train/metrics_log.h"
#include "esp/train/progress.h"
#include "esp/train/tensorboard.h"

namespace esp::train {

// Statistics over all ranks. If ranks do not run in lockstep, `one_rank` is true and the statistics are those of rank
// 0.
struct RankStats {
  uint64_t memory_bytes = 0;  // peak device memory in bytes, the maximum over ranks
  // Bytes sent per step since the last logged step: mean and maximum over ranks.
  double bytes_sent = 0, most_bytes_sent = 0;
  bool one_rank = false;
};

struct StepReport {
  int64_t step = 0;  // number of steps made so far; 1 after the first step
  StepResult result;
  double seconds = 0;
  std::optional<double> val_loss;
  std::vector<sync::ReplicaMetric> replica_metrics;  // statistics of divergent replicas
  double flops_per_s = 0, mfu = 0, hfu = 0;          // of the whole job; hfu also counts recomputation
  RankStats rank_stats;                              // values of the last logged step
  bool recovered = false;  // true: written after a recovery, for a step made before it; `rank_stats` is older
};

class RunReporter {
 public:
  // `folder` must exist. Lines of metrics.jsonl after the engine's step are removed, because the run writes them again.
  RunReporter(const std::string& folder, const RunConfig& config, Engine& engine, Progress& progress, const Log& log);
  ~RunReporter();

  // Collective if `logged`. In that case the caller must have paused the traffic counter.
  void step(StepReport report, bool logged);
  StepTraffic& traffic() { return traffic_; }
  MetricsLog* metrics() { return metrics_.get(); }  // null except on rank 0
  BestEffortFiles& files() { return files_; }
  const RankStats& rank_stats() const { return rank_stats_; }
  // Collective. Writes summary.json (rank 0) and ranks/rank-K.json (every rank), and logs how much the host link was
  // used. `peak` is the peak FLOP/s of all ranks.
  void finish(double wall_s, int restarts, double peak, const Json& periodic_saves);
  double final_loss() const { return last_.result.loss; }  // NaN if no step was made and no earlier step was logged

 private:
  // Coordinates, memory and traffic of this rank so far. Call it between steps, because it first completes pending
  // calls.
  Json rank_json() const;
  void write_rank(const Json& rank);
  void gather_stats(int64_t step);
  void write_tensorboard(const StepReport& report, double tokens_per_s);  // writes TensorBoard scalars
  // For an offloaded run: bytes per step and transfer rates of the host link and of the file tier, since the first
  // step.
  Json offload_json();

  std::string folder_;
  const RunConfig& config_;
  Engine& engine_;
  Progress& progress_;
  BestEffortFiles files_;
  std::unique_ptr<MetricsLog> metrics_;  // null except on rank 0
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  StepReport last_;
  RankStats rank_stats_;
  StepTraffic traffic_;
  std::optional<double> val_loss_;  // the last validation loss; empty: none yet
  double tokens_ = 0, seconds_ = 0, exposed_ms_ = 0, waited_ms_ = 0;
  int64_t num_steps_ = 0, rank_written_ns_ = 0;
  int64_t first_step_ = 0;  // number of steps made before this process started
  device::LinkUse down_before_, up_before_;
  sync::FileTraffic file_before_;
};

}  // namespace esp::train
