#include "esp/train/checkpoint_manager.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/format.h"
#include "esp/ckpt/steps.h"
#include "esp/device/cpu/topology.h"
#include "esp/device/gpu.h"
#include "esp/kernel/elementwise.h"
#include "esp/train/gather_texts.h"
#include "esp/train/progress.h"
#include "esp/train/run_folder.h"
#include "esp/train/snapshot.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

constexpr double kMaxSnapshotInterval_s = 60, kMaxCheckpointInterval_s = 15 * 60;
constexpr double kMinSnapshotInterval_s = 1, kMinCheckpointInterval_s = 60;
// The minimum is longer for asynchronous workers, because each snapshot makes them synchronise.
constexpr double kMinAsyncSnapshotInterval_s = 15;
// Assumed cost of the first save: the state is copied and checksummed, and new memory is touched for the first time.
constexpr double kExpected_s = 0.05, kExpectedBytesPer_s = 0.5e9;
constexpr int kAutoSnapshotsKept = 1, kSnapshotsKept = 2;
// Number of copies of the state in memory: the last snapshot, the snapshot being written, and one buffer each of the
// snapshot writer and the checkpoint writer.
constexpr int kCopiesOfState = 4;

double now_s() {
  return static_cast<double>(now_ns()) * 1e-9;
}

uint64_t free_bytes(std::string path) {
  std::error_code error;
  while (!path.empty() && !fs::exists(path, error)) path = fs::path(path).parent_path().string();
  const fs::space_info space = fs::space(path.empty() ? "." : path, error);
  // if the free space is unknown, assumes enough: the write itself reports a full disk
  return error ? ~uint64_t{0} : space.available;
}

int64_t bytes_of(const ckpt::Snapshot& snapshot) {
  size_t bytes = 0;
  for (const auto* slices : {&snapshot.model, &snapshot.optimizer})
    for (const ckpt::TensorSlice& slice : *slices) bytes += slice.values.bytes();
  return static_cast<int64_t>(bytes);
}

}  // namespace

CheckpointManager::CheckpointManager(Engine& engine, const RunConfig& config, const Log& log, RunMonitor& monitor,
                                     const RecoveryOptions& recovery, const FolderHandle& run_folder,
                                     std::string folder, std::function<void(const std::string&)> note)
    : engine_(engine),
      config_(config),
      log_(log),
      monitor_(monitor),
      recovery_(recovery),
      run_folder_(run_folder),
      folder_(std::move(folder)),
      note_(std::move(note)),
      checkpoint_saver_(folder_, save_options(), config.checkpoint.async, engine.account(), engine.host().stream) {}

bool CheckpointManager::lockstep() const {
  sync::AsyncWorkers* const workers = engine_.strategy().async_workers();
  return !workers || workers->lockstep();
}

// Returns false if the run records or replays the order of pushes and pulls (sync.ps.record, sync.ps.replay). A save
// synchronises the workers, and the recorded order contains these synchronisations. So a replay must save after the
// same steps as the recording.
bool CheckpointManager::allows_automatic_saves() const {
  return config_.sync.ps.record.empty() && config_.sync.ps.replay.empty();
}

// The expected cost of a save, from the bytes per rank: weights, moments and master weights, divided over all ranks.
double CheckpointManager::expected_cost_s() const {
  const double bytes = 16.0 * static_cast<double>(engine_.num_parameters()) / engine_.job().size();
  return kExpected_s + bytes / kExpectedBytesPer_s;
}

void CheckpointManager::prepare() {
  step_began_s_ = now_s();
  const auto periodic = [&](double min_s, double max_s) {
    return Periodic{
        CheckpointInterval({.min_s = min_s, .max_s = max_s, .expected_s = expected_cost_s()}, step_began_s_)};
  };
  if (config_.checkpoint.every.automatic() && config_.checkpoint.at_end && allows_automatic_saves())
    auto_checkpoints_ = periodic(kMinCheckpointInterval_s, kMaxCheckpointInterval_s);
  const bool automatic = config_.checkpoint.snapshot_every.automatic();
  if (automatic ? !allows_automatic_saves() : *config_.checkpoint.snapshot_every.steps == 0) return;
  const std::string offered = broadcast_text(engine_.job().ranks, recovery_.snapshot_folder);
  snapshot_folder_ = choose_snapshot_folder(engine_.job(), config_.checkpoint.snapshot_dir, offered);
  if (snapshot_folder_.empty()) {
    if (first() && !automatic)
      log_.warn(
          "checkpoint.snapshot_every = {}: no folder for snapshots. Start the run with `espalier launch` on one host, "
          "or set checkpoint.snapshot_dir to a folder that all ranks can access",
          *config_.checkpoint.snapshot_every.steps);
    if (first() && automatic && !offered.empty())
      log_.warn(
          "no snapshots in memory: the ranks are on several hosts. A lost rank costs the work since the last "
          "checkpoint on disk. Set checkpoint.snapshot_dir to a folder that all hosts can access");
    return;
  }
  check_snapshot_folder();
  ckpt::SaveOptions options = save_options();
  options.keep = automatic ? kAutoSnapshotsKept : kSnapshotsKept;
  options.add_files = nullptr;
  snapshot_saver_ =
      std::make_unique<CheckpointSaver>(snapshot_folder_, options, true, engine_.account(), engine_.host().stream);
  if (automatic)
    auto_snapshots_ =
        periodic(lockstep() ? kMinSnapshotInterval_s : kMinAsyncSnapshotInterval_s, kMaxSnapshotInterval_s);
}

// Collective. Throws at the start of the run if the snapshot folder cannot be created; otherwise every snapshot would
// end in a timeout.
void CheckpointManager::check_snapshot_folder() const {
  std::string refusal;
  try {
    if (first()) ckpt::make_folders(snapshot_folder_, 0700);
  } catch (const IoError& error) {
    refusal = error.what();
  }
  refusal = broadcast_text(engine_.job().ranks, refusal);
  if (!refusal.empty())
    throw IoError(fmt::format("checkpoint.snapshot_dir = {}: {}", config_.checkpoint.snapshot_dir, refusal));
}

ckpt::SaveOptions CheckpointManager::save_options() {
  const JobContext& job = engine_.job();
  ckpt::SaveOptions options;
  if (recovery_.peer_lost) options.peer_lost = recovery_.peer_lost;
  options.check_folder = [this] { run_folder_.check(); };
  options.keep = static_cast<int>(config_.checkpoint.keep);
  options.rank = job.rank();
  options.world = job.size();
  // Asynchronous workers and divergent replicas may start a save much later than others, so they get the long timeout.
  if (!lockstep() || engine_.strategy().divergent_replicas()) options.begin_timeout = options.timeout;
  options.token = broadcast_text(job.ranks, fmt::format("{:08x}{:08x}", random_(), random_()));
  options.add_files = [this](const std::string& folder) {
    if (engine_.data_pipeline().tokenizer && config_.data.tokenizer != "byte") {
      engine_.data_pipeline().tokenizer->save(folder);
      write_hf_settings(hf_settings_, folder, false);
    }
  };
  return options;
}

double CheckpointManager::cost_s(const std::optional<Periodic>& periodic, const CheckpointSaver* saver) const {
  return periodic && saver ? periodic->paused_s + std::max(saver->writer_s(), periodic->slowed_s) : 0;
}

// Measures how much a background write slows down the steps that run at the same time, because it uses cores, caches
// and memory bandwidth. At most one usual step time is counted per step, so that an evaluation during the write is not
// counted as a slowdown.
void CheckpointManager::measure_slowdown() {
  const bool snapshot = snapshot_saver_ && snapshot_saver_->writing(), checkpoint = checkpoint_saver_.writing();
  if (!was_writing_ && !snapshot && !checkpoint) {
    usual_step_s_ = usual_step_s_ == 0 ? step_s_ : 0.9 * usual_step_s_ + 0.1 * step_s_;
  } else if (usual_step_s_ > 0) {
    const double slowed = std::clamp(step_s_ - usual_step_s_, 0.0, usual_step_s_);
    if (auto* periodic = last_was_snapshot_ ? &auto_snapshots_ : &auto_checkpoints_; *periodic)
      (*periodic)->slowed_s += slowed;
  }
}

// Proposes at most one save, and none of a kind whose previous save is still being written.
PeriodicSave CheckpointManager::proposed_save() const {
  const double now = now_s();
  if (auto_snapshots_ && !snapshot_saver_->writing() && auto_snapshots_->interval.due_after_step(now, step_s_))
    return PeriodicSave::snapshot;
  if (auto_checkpoints_ && !checkpoint_saver_.writing() && auto_checkpoints_->interval.due_after_step(now, step_s_))
    return PeriodicSave::checkpoint;
  return PeriodicSave::none;
}

StepRequest CheckpointManager::step_request() const {
  StepRequest request;
  if (first() && lockstep()) request.save = proposed_save();
  request.snapshot_cost_s = cost_s(auto_snapshots_, snapshot_saver_.get());
  request.checkpoint_cost_s = cost_s(auto_checkpoints_, &checkpoint_saver_);
  return request;
}

PeriodicSave CheckpointManager::decide_save(const StepResult& result) {
  if (!auto_snapshots_ && !auto_checkpoints_) return PeriodicSave::none;
  StepRequest all = result.decision;
  const int64_t step = engine_.num_steps();
  if (!lockstep() && step < next_decision_step_) return PeriodicSave::none;
  if (!lockstep()) {
    double costs[] = {cost_s(auto_snapshots_, snapshot_saver_.get()), cost_s(auto_checkpoints_, &checkpoint_saver_)};
    comm::Communicator* const ranks = engine_.job().ranks;
    if (ranks) ranks->all_reduce(costs, costs, std::size(costs), DType::f64, comm::ReduceOp::max);
    all.snapshot_cost_s = costs[0];
    all.checkpoint_cost_s = costs[1];
  }
  if (auto_snapshots_) auto_snapshots_->interval.set_total_cost(all.snapshot_cost_s);
  if (auto_checkpoints_) auto_checkpoints_->interval.set_total_cost(all.checkpoint_cost_s);
  if (lockstep()) return all.save;
  // The next decision comes at the latest when the number of steps has doubled, because the first steps are a poor
  // estimate of the step time.
  int64_t next = std::max<int64_t>(1, num_steps_);
  for (const auto* one : {&auto_snapshots_, &auto_checkpoints_})
    if (*one) next = std::min(next, (*one)->interval.steps_to_next_decision(now_s(), step_s_));
  int64_t words[] = {static_cast<int64_t>(proposed_save()), step + next};
  if (comm::Communicator* ranks = engine_.job().ranks) ranks->broadcast(words, std::size(words), DType::i64, 0);
  next_decision_step_ = words[1];
  return static_cast<PeriodicSave>(words[0]);
}

void CheckpointManager::end_step(const StepResult& result, double loss_scale_before) {
  ++num_steps_;
  finish_snapshot();
  const bool searching = result.skipped && engine_.loss_scale().scale() < loss_scale_before;
  health_.step(engine_.num_steps(), result.loss, result.skipped, searching);
}

void CheckpointManager::save_if_due(const StepResult& result, const std::function<void()>& before) {
  const int64_t step = engine_.num_steps();
  step_s_ = now_s() - step_began_s_;
  measure_slowdown();
  const PeriodicSave due = decide_save(result);
  if (due == PeriodicSave::checkpoint || config_.checkpoint.every.ends_at(step)) {
    before();
    last_was_snapshot_ = false;
    checkpoint(OnFailure::go_on, due == PeriodicSave::checkpoint);
  } else if (snapshot_saver_ && (due == PeriodicSave::snapshot || config_.checkpoint.snapshot_every.ends_at(step))) {
    before();
    last_was_snapshot_ = true;
    snapshot(due == PeriodicSave::snapshot);
  }
  was_writing_ = checkpoint_saver_.writing() || (snapshot_saver_ && snapshot_saver_->writing());
  step_began_s_ = now_s();
}

void CheckpointManager::save_last() {
  checkpoint(OnFailure::stop, false);
}

// Returns false if `write` fails. During training, a full disk or an unreachable file server costs only this
// checkpoint, not the run: the previous checkpoint remains, and the next one is written on schedule. All ranks get the
// same result (ckpt::save).
template <typename F>
bool CheckpointManager::succeeds(OnFailure on_failure, F&& write) {
  try {
    write();
    return true;
  } catch (const obs::FileChanged&) {
    throw;
  } catch (const IoError& error) {
    if (on_failure == OnFailure::stop) throw;
    if (first()) log_.warn("{}; training continues without this checkpoint", error.what());
    return false;
  }
}

ckpt::Snapshot CheckpointManager::current_state() {
  monitor_.before_checkpoint();
  ckpt::Snapshot snapshot = make_snapshot(engine_, config_);
  snapshot.state["restarts"] = restarts_;
  return snapshot;
}

void CheckpointManager::checkpoint(OnFailure on_failure, bool automatic) {
  run_folder_.check();
  const double begun = now_s();
  if (automatic) {
    warn_of_cost(*auto_checkpoints_, "checkpoints", "checkpoint.every");
    auto_checkpoints_->interval.begin(begun);
  }
  // Completes the previous background write before the comparison of the replicas, because the comparison may end the
  // run. Snapshots in memory were compared when they were made, and need no completion.
  succeeds(OnFailure::go_on, [&] { checkpoint_saver_.finish(); });
  ckpt::Snapshot snapshot = current_state();
  const State state = check_state(snapshot);
  if (!state.good) {
    warn_diverged();
    if (on_failure == OnFailure::stop) save_diverged(std::move(snapshot));
    return;
  }
  if (automatic && !fits_on_disk(state.bytes)) return;
  const bool in_background = config_.checkpoint.async || (automatic && fits_in_memory(state.bytes, 1));
  if (!succeeds(on_failure, [&] { checkpoint_saver_.save(std::move(snapshot), in_background); })) return;
  note_(fmt::format("checkpoint {}/step-{}", folder_, engine_.num_steps()));
  if (automatic) auto_checkpoints_->paused_s += now_s() - begun;
}

void CheckpointManager::snapshot(bool automatic) {
  const double begun = now_s();
  if (automatic) {
    warn_of_cost(*auto_snapshots_, "snapshots", "checkpoint.snapshot_every");
    auto_snapshots_->interval.begin(begun);
  }
  // If the last snapshot could not be written (for example because the memory is full), no further snapshots are made
  // and the run continues.
  if (automatic && !succeeds(OnFailure::go_on, [&] { snapshot_saver_->finish(); })) {
    if (first()) log_.warn("no further snapshots; checkpoints on disk continue");
    auto_snapshots_.reset();
    return;
  }
  ckpt::Snapshot snapshot = current_state();
  const State state = check_state(snapshot);
  if (!state.good) return warn_diverged();
  if (automatic && !std::exchange(memory_checked_, true) && !fits_in_memory(state.bytes, kCopiesOfState)) {
    if (first())
      log_.warn(
          "no snapshots in memory: {} copies of the state ({} each) need more than half of this host's free memory, or "
          "two copies do not fit into {}. A lost rank costs the work since the last checkpoint on disk",
          kCopiesOfState, format_bytes(static_cast<uint64_t>(state.bytes)), snapshot_folder_);
    auto_snapshots_.reset();
    return;
  }
  succeeds(OnFailure::go_on, [&] { snapshot_saver_->save(std::move(snapshot)); });
  if (automatic) {
    auto_snapshots_->paused_s += now_s() - begun;
  } else {
    snapshot_pending_ = true;
  }
}

// With a fixed checkpoint.snapshot_every, waits until the last snapshot is complete. Then a rank failure costs at most
// that number of steps. Automatic snapshots limit the lost time instead, so nothing waits for them.
void CheckpointManager::finish_snapshot() {
  if (!std::exchange(snapshot_pending_, false)) return;
  monitor_.begin(comm::Phase::checkpoint);
  if (!succeeds(OnFailure::go_on, [&] { snapshot_saver_->finish(); }) && recovery_.peer_lost && recovery_.peer_lost())
    throw peer_loss_error(recovery_);
}

void CheckpointManager::warn_of_cost(Periodic& periodic, const char* what, const char* key) {
  if (!first() || periodic.cost_warned || !periodic.interval.exceeds_share()) return;
  periodic.cost_warned = true;
  log_.warn(
      "{} take more than 1 % of the training time, because the limit on lost work has priority. To change this, set {} "
      "to a "
      "number of steps, or to 0",
      what, key);
}

// Collective. Determines whether a run can resume from this state (few skipped steps, all values finite), and the size
// of the state over all ranks.
CheckpointManager::State CheckpointManager::check_state(const ckpt::Snapshot& snapshot) {
  int64_t good = health_.problem().empty() ? 1 : 0;
  for (const ckpt::TensorSlice& slice : snapshot.model) {
    if (good == 0) break;
    if (slice.read || !is_floating(slice.values.dtype())) continue;
    const device::Stream stream =
        device::is_host_accessible(slice.values.data()) ? engine_.host().stream : engine_.context().stream;
    if (!kernel::all_finite(slice.values.data(), slice.values.count(), slice.values.dtype(), stream)) {
      health_.values_not_finite(engine_.num_steps());
      good = 0;
    }
  }
  int64_t bytes = bytes_of(snapshot);
  if (comm::Communicator* ranks = engine_.job().ranks) {
    ranks->all_reduce(&good, &good, 1, DType::i64, comm::ReduceOp::min);
    ranks->all_reduce(&bytes, &bytes, 1, DType::i64, comm::ReduceOp::sum);
  }
  if (good != 0) diverged_warned_ = false;
  return {good != 0, bytes};
}

// Collective. True if half of the free memory can hold `copies` copies of the state of all ranks. For more than one
// copy, the snapshot folder must have room for two.
bool CheckpointManager::fits_in_memory(int64_t bytes, int copies) {
  const auto each = static_cast<uint64_t>(bytes);
  int64_t fits = device::available_memory_bytes() / 2 >= static_cast<uint64_t>(copies) * each ? 1 : 0;
  if (copies > 1 && free_bytes(snapshot_folder_) / 4 * 3 < 2 * each) fits = 0;
  if (comm::Communicator* ranks = engine_.job().ranks)
    ranks->all_reduce(&fits, &fits, 1, DType::i64, comm::ReduceOp::min);
  return fits != 0;
}

// Collective. True if the disk has room for this checkpoint and for the final one, which the run must be able to write.
bool CheckpointManager::fits_on_disk(int64_t bytes) {
  int64_t fits = !first() || free_bytes(folder_) >= 2 * static_cast<uint64_t>(bytes) ? 1 : 0;
  if (comm::Communicator* ranks = engine_.job().ranks)
    ranks->all_reduce(&fits, &fits, 1, DType::i64, comm::ReduceOp::min);
  if (fits == 0 && first() && !std::exchange(disk_warned_, true))
    log_.warn("{}: not enough free space for two checkpoints of {} each; only the final checkpoint is written", folder_,
              format_bytes(static_cast<uint64_t>(bytes)));
  return fits != 0;
}

Json CheckpointManager::summary() const {
  return {{"snapshots", auto_snapshots_ ? auto_snapshots_->interval.num() : 0},
          {"checkpoints", auto_checkpoints_ ? auto_checkpoints_->interval.num() : 0},
          {"cost_s", cost_s(auto_snapshots_, snapshot_saver_.get()) + cost_s(auto_checkpoints_, &checkpoint_saver_)}};
}

void CheckpointManager::warn_diverged() {
  const std::string problem = health_.problem();
  if (!first() || std::exchange(diverged_warned_, true)) return;
  log_.warn("step {}: {}: no checkpoint is written", engine_.num_steps(),
            problem.empty() ? "another rank's loss or values are not finite" : problem);
}

// Saves into a separate folder, from which a run never resumes automatically.
void CheckpointManager::save_diverged(ckpt::Snapshot snapshot) {
  ckpt::SaveOptions options = save_options();
  options.keep = 1;
  CheckpointSaver saver(fmt::format("{}/{}", folder_, kDivergedFolder), options, false, engine_.account(),
                        engine_.host().stream);
  saver.save(std::move(snapshot));
  diverged_path_ = saver.finish();
}

}  // namespace esp::train
