// A run's checkpoints on disk and snapshots in the host's memory: after fixed numbers of steps, or automatically, as
// often as their measured cost allows (checkpoint_interval.h), and a checkpoint at the end.
//
// The first rank's clock decides about automatic ones. Its decision travels with what ranks tell each other at the end
// of a step, so that all ranks save after the same step; ranks that go at their own pace meet for it at steps that are
// agreed ahead. Automatic saves are written in the background. A state that is not one to resume from (not finite, or
// reached by skipped steps) is never written among the checkpoints. One thread; most calls are collective.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "esp/base/log.h"
#include "esp/train/checkpoint_interval.h"
#include "esp/train/engine.h"
#include "esp/train/guards.h"
#include "esp/train/hf_settings.h"
#include "esp/train/recover.h"
#include "esp/train/run_folder.h"
#include "esp/train/saver.h"
#include "esp/train/training_health.h"

namespace esp::train {

class RunCheckpoints {
 public:
  // `note`: a line of the run's log, which the first rank prints. Everything given outlives it.
  RunCheckpoints(Engine& engine, const RunConfig& config, const Log& log, Guards& guards, const Recovery& recovery,
                 const FolderHandle& run_folder, std::string folder, std::function<void(const std::string&)> note);

  // Collective: finds the folder of snapshots.
  void prepare();
  const std::string& folder() const { return folder_; }
  const std::string& snapshot_folder() const { return snapshot_folder_; }  // empty: none
  void set_restarts(int restarts) { restarts_ = restarts; }                // written into checkpoints

  // What this rank tells the others about saving after the step that begins.
  StepNotice notice() const;
  // After each step. CommError where a snapshot failed because a rank was lost.
  void end_step(const StepResult& result, double loss_scale_before);
  // After a step that is not the last one: what is due. `before` is called where something is.
  void save_if_due(const StepResult& result, const std::function<void()>& before);
  void save_last();
  // Returns the path of the newest checkpoint written, when it is on the disk; empty when there was none.
  std::string finish() { return saver_.finish(); }

  // What was made automatically, and what it cost: for summary.json.
  Json summary() const;
  const TrainingHealth& health() const { return health_; }
  // Where the last state is when it is not one to resume from; else empty.
  const std::string& diverged_path() const { return diverged_path_; }

 private:
  // Snapshots or checkpoints made automatically.
  struct Periodic {
    CheckpointInterval interval;
    double held_s = 0;    // training was paused
    double slowed_s = 0;  // steps took longer while one was written
    bool told_cost = false;
  };
  enum class OnFailure { go_on, stop };
  struct State {  // of the whole run, as all ranks know it
    bool good = true;
    int64_t bytes = 0;
  };

  bool first() const { return engine_.standing().rank() == 0; }
  bool lockstep() const;
  bool may_be_automatic() const;
  double expected_cost_s() const;
  void check_snapshot_folder() const;
  ckpt::SaveOptions save_options();
  void measure_slowdown();
  double cost_s(const std::optional<Periodic>& periodic, const Saver* saver) const;
  PeriodicSave wish() const;
  PeriodicSave agreed(const StepResult& result);
  void tell_cost(Periodic& periodic, const char* what, const char* key);

  void checkpoint(OnFailure on_failure, bool automatic);
  void snapshot(bool automatic);
  void settle_snapshot();
  ckpt::Snapshot state_now();
  State judge(const ckpt::Snapshot& snapshot);
  bool fits_in_memory(int64_t bytes, int copies);
  bool fits_on_disk(int64_t bytes);
  void keep_diverged(ckpt::Snapshot snapshot);
  void tell_diverged();
  template <typename F>
  bool succeeds(OnFailure on_failure, F&& write);

  Engine& engine_;
  const RunConfig& config_;
  const Log log_;
  Guards& guards_;
  const Recovery& recovery_;
  const FolderHandle& run_folder_;
  const std::string folder_;
  // Read once: the tokenizer's folder may be removed while the run goes on.
  const std::map<std::string, std::string> hf_settings_ = read_hf_settings(config_.data.tokenizer);
  const std::function<void(const std::string&)> note_;
  std::random_device random_;
  Saver saver_;
  std::string snapshot_folder_;
  std::unique_ptr<Saver> snapshots_;  // null: none
  std::optional<Periodic> auto_checkpoints_, auto_snapshots_;
  TrainingHealth health_;
  std::string diverged_path_;
  int restarts_ = 0;
  bool snapshot_to_settle_ = false, told_diverged_ = false, told_disk_ = false, memory_checked_ = false;
  int64_t num_steps_ = 0;  // since prepare
  int64_t look_at_ = 0;    // not in lockstep: the next step after which ranks agree
  double step_began_s_ = 0, step_s_ = 0;
  double usual_step_s_ = 0;                                // moving average of steps beside which nothing was written
  bool last_was_snapshot_ = false, wrote_beside_ = false;  // something was being written when the step began
};

}  // namespace esp::train
