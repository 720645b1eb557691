// CheckpointManager: saves the checkpoints of a run on disk and its snapshots in host memory. The interval between
// saves is a fixed number of steps, or it is chosen automatically from the measured cost of a save
// (checkpoint_interval.h). The last checkpoint is written at the end of the run.
//
// Rank 0's clock decides about automatic saves. The ranks exchange the decision at the end of each step, so all save
// after the same step. Asynchronous workers synchronise for this decision at steps fixed in advance. Automatic saves
// are written in the background. A state that a run cannot resume from (values not finite, or most recent steps
// skipped) is never written among the checkpoints. One thread; most calls are collective.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "esp/base/log.h"
#include "esp/train/checkpoint_interval.h"
#include "esp/train/checkpoint_saver.h"
#include "esp/train/engine.h"
#include "esp/train/hf_settings.h"
#include "esp/train/recovery.h"
#include "esp/train/run_folder.h"
#include "esp/train/run_monitor.h"
#include "esp/train/training_health.h"

namespace esp::train {

class CheckpointManager {
 public:
  // `note` prints a line to the run's log on rank 0. All arguments passed by reference outlive this object.
  CheckpointManager(Engine& engine, const RunConfig& config, const Log& log, RunMonitor& monitor,
                    const RecoveryOptions& recovery, const FolderHandle& run_folder, std::string folder,
                    std::function<void(const std::string&)> note);

  // Collective: chooses the snapshot folder.
  void prepare();
  const std::string& folder() const { return folder_; }
  const std::string& snapshot_folder() const { return snapshot_folder_; }  // empty: no snapshots
  void set_restarts(int restarts) { restarts_ = restarts; }  // number of restarts so far; checkpoints store it

  // This rank's proposed save and its costs of saving so far, for the exchange at the end of the next step.
  StepRequest step_request() const;
  // Call after each step. CommError if a snapshot failed because another rank was lost.
  void end_step(const StepResult& result, double loss_scale_before);
  // Call after each step but the last. If a checkpoint or snapshot is due, calls `before` and then saves it.
  void save_if_due(const StepResult& result, const std::function<void()>& before);
  void save_last();
  // Waits for background writes. Returns the path of the newest checkpoint written, or empty.
  std::string finish() { return checkpoint_saver_.finish(); }

  // Number and cost of the automatic saves, for summary.json.
  Json summary() const;
  const TrainingHealth& health() const { return health_; }
  // Path of the final state if a run cannot resume from it; otherwise empty.
  const std::string& diverged_path() const { return diverged_path_; }

 private:
  // Schedule and cost of automatic saves of one kind (snapshots or checkpoints).
  struct Periodic {
    CheckpointInterval interval;
    double paused_s = 0;  // total time that saves paused training
    double slowed_s = 0;  // total time by which background writes made steps slower
    bool cost_warned = false;
  };
  enum class OnFailure { go_on, stop };
  struct State {  // result of check_state, equal on all ranks
    bool good = true;
    int64_t bytes = 0;
  };

  bool first() const { return engine_.job().rank() == 0; }
  bool lockstep() const;
  bool allows_automatic_saves() const;
  double expected_cost_s() const;
  void check_snapshot_folder() const;
  ckpt::SaveOptions save_options();
  void measure_slowdown();
  double cost_s(const std::optional<Periodic>& periodic, const CheckpointSaver* saver) const;
  PeriodicSave proposed_save() const;
  PeriodicSave decide_save(const StepResult& result);
  void warn_of_cost(Periodic& periodic, const char* what, const char* key);

  void checkpoint(OnFailure on_failure, bool automatic);
  void snapshot(bool automatic);
  void finish_snapshot();
  ckpt::Snapshot current_state();
  State check_state(const ckpt::Snapshot& snapshot);
  bool fits_in_memory(int64_t bytes, int copies);
  bool fits_on_disk(int64_t bytes);
  void save_diverged(ckpt::Snapshot snapshot);
  void warn_diverged();
  template <typename F>
  bool succeeds(OnFailure on_failure, F&& write);

  Engine& engine_;
  const RunConfig& config_;
  const Log log_;
  RunMonitor& monitor_;
  const RecoveryOptions& recovery_;
  const FolderHandle& run_folder_;
  const std::string folder_;
  // Files of the tokenizer's folder. They are read at the start, because the folder may be removed during the run.
  const std::map<std::string, std::string> hf_settings_ = read_hf_settings(config_.data.tokenizer);
  const std::function<void(const std::string&)> note_;
  std::random_device random_;
  CheckpointSaver checkpoint_saver_;
  std::string snapshot_folder_;
  std::unique_ptr<CheckpointSaver> snapshot_saver_;  // null: no snapshots
  std::optional<Periodic> auto_checkpoints_, auto_snapshots_;
  TrainingHealth health_;
  std::string diverged_path_;
  int restarts_ = 0;
  bool snapshot_pending_ = false, diverged_warned_ = false, disk_warned_ = false, memory_checked_ = false;
  int64_t num_steps_ = 0;           // steps since prepare()
  int64_t next_decision_step_ = 0;  // for asynchronous workers: the step of their next joint decision
  double step_began_s_ = 0, step_s_ = 0;
  double usual_step_s_ = 0;  // moving average of the step time, without steps during a background write
  // last_was_snapshot_: the last save was a snapshot. was_writing_: a background write was active when the step
  // started.
  bool last_was_snapshot_ = false, was_writing_ = false;
};

}  // namespace esp::train
