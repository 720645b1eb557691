// What a run tells the world as it goes: the step line, metrics.jsonl, TensorBoard events, and at the end summary.json
// and ranks/rank-K.json. Rank 0 speaks; every rank writes its own rank file: every few seconds its memory and what it
// sent, for those who watch, and at the end all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "esp/device/memory.h"
#include "esp/obs/event_log.h"
#include "esp/train/engine.h"
#include "esp/train/progress.h"
#include "esp/train/tensorboard.h"

namespace esp::train {

struct StepReport {
  int64_t step = 0;  // from 1: steps done
  StepResult result;
  double seconds = 0;
  std::optional<double> val_loss;
  std::vector<sync::Measure> measures;       // of copies that go their own ways
  double flops_per_s = 0, mfu = 0, hfu = 0;  // of the model; hfu: with what is computed again
  uint64_t memory_bytes = 0;
};

class Reports {
 public:
  // `folder` exists. Lines of metrics.jsonl beyond the engine's present step are of a future that did not happen and
  // are dropped.
  Reports(const std::string& folder, const RunConfig& config, Engine& engine, Progress& progress);
  ~Reports();

  void step(const StepReport& report, bool logged);
  // summary.json by the first rank, ranks/rank-K.json by each, and what crossed the host's link in words. Collective.
  void finish(double wall_s, int restarts);
  double final_loss() const { return last_.result.loss; }  // no number where there was no step, and nobody told of one

 private:
  // Place, memory, traffic so far. Between steps: calls that were started are waited for before they are counted.
  Json rank_json() const;
  void write_rank(const Json& rank);
  // Of an offloaded run: bytes a step and rates of the host's link and of the file tier, since the first step.
  Json offloaded();

  std::string folder_;
  const RunConfig& config_;
  Engine& engine_;
  Progress& progress_;
  std::unique_ptr<obs::EventLog> metrics_;  // null on ranks but the first
  std::unique_ptr<TensorBoard> tensorboard_;
  StepReport last_;
  double tokens_ = 0, seconds_ = 0, exposed_ms_ = 0, waited_ms_ = 0;
  int64_t num_steps_ = 0, rank_written_ns_ = 0;
  int64_t first_step_ = 0;  // before which nothing was done here
  device::LinkUse down_before_, up_before_;
  sync::FileTraffic file_before_;
};

}  // namespace esp::train
