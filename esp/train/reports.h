// What a run tells the world as it goes: the step line, metrics.jsonl, TensorBoard events, and at the end summary.json
// and ranks/rank-K.json. Rank 0 speaks; every rank writes its own rank file: every few seconds its memory and what it
// sent, for those who watch, and at the end all of it.
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

// Figures of all ranks; of the first alone where ranks do not step together (`one_rank`).
struct RankFigures {
  uint64_t memory_bytes = 0;                   // device memory, peak of the rank that has most
  double bytes_sent = 0, most_bytes_sent = 0;  // per step since the last logged one: mean of the ranks, most of any
  bool one_rank = false;
};

struct StepReport {
  int64_t step = 0;  // from 1: steps done
  StepResult result;
  double seconds = 0;
  std::optional<double> val_loss;
  std::vector<sync::ReplicaMetric> measures;  // of copies that go their own ways
  double flops_per_s = 0, mfu = 0, hfu = 0;   // of the whole job; hfu: with what is computed again
  RankFigures of_ranks;                       // as of the last logged step
  bool recovered = false;                     // told after a recovery: `of_ranks` is as of the step logged before
};

class Reports {
 public:
  // `folder` exists. Lines of metrics.jsonl of later steps than the engine's are dropped: the run makes them again.
  Reports(const std::string& folder, const RunConfig& config, Engine& engine, Progress& progress, const Log& log);
  ~Reports();

  // Collective where it is logged; the caller has then paused the traffic.
  void step(StepReport report, bool logged);
  StepTraffic& traffic() { return traffic_; }
  MetricsLog* metrics() { return metrics_.get(); }  // null on ranks but the first
  OptionalFiles& files() { return files_; }
  const RankFigures& of_ranks() const { return shared_; }
  // summary.json by the first rank, ranks/rank-K.json by each, and what crossed the host's link in words. Collective.
  // `peak`: FLOP/s of all ranks at most.
  void finish(double wall_s, int restarts, double peak, const Json& periodic_saves);
  double final_loss() const { return last_.result.loss; }  // no number where there was no step, and nobody told of one

 private:
  // Place, memory, traffic so far. Between steps: calls that were started are waited for before they are counted.
  Json rank_json() const;
  void write_rank(const Json& rank);
  void share(int64_t step);
  void draw(const StepReport& report, double tokens_per_s);  // for TensorBoard
  // Of an offloaded run: bytes a step and rates of the host's link and of the file tier, since the first step.
  Json offloaded();

  std::string folder_;
  const RunConfig& config_;
  Engine& engine_;
  Progress& progress_;
  OptionalFiles files_;
  std::unique_ptr<MetricsLog> metrics_;  // null on ranks but the first
  std::unique_ptr<TensorBoard> tensorboard_;
  StepReport last_;
  RankFigures shared_;
  StepTraffic traffic_;
  std::optional<double> val_loss_;  // the last one evaluated
  double tokens_ = 0, seconds_ = 0, exposed_ms_ = 0, waited_ms_ = 0;
  int64_t num_steps_ = 0, rank_written_ns_ = 0;
  int64_t first_step_ = 0;  // before which nothing was done here
  device::LinkUse down_before_, up_before_;
  sync::FileTraffic file_before_;
};

}  // namespace esp::train
