#include "esp/train/run_checkpoints.h"

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

constexpr double kSnapshotsAtLeast_s = 60, kCheckpointsAtLeast_s = 15 * 60;
constexpr double kSnapshotsAtMost_s = 1, kCheckpointsAtMost_s = 60;
constexpr double kMeetingsAtMost_s = 15;  // snapshots of ranks that go at their own pace, and meet for them
// Before the first was measured: a copy, checksums and new memory.
constexpr double kExpected_s = 0.05, kExpectedBytesPer_s = 0.5e9;
constexpr int kAutoSnapshotsKept = 1, kSnapshotsKept = 2;
// In memory: a snapshot, the one being written, and what the threads that write a snapshot and a checkpoint read.
constexpr int kCopiesOfState = 4;

double now_s() {
  return static_cast<double>(now_ns()) * 1e-9;
}

uint64_t free_bytes(std::string path) {
  std::error_code error;
  while (!path.empty() && !fs::exists(path, error)) path = fs::path(path).parent_path().string();
  const fs::space_info space = fs::space(path.empty() ? "." : path, error);
  return error ? ~uint64_t{0} : space.available;  // a file system that does not tell is tried
}

int64_t bytes_of(const ckpt::Snapshot& snapshot) {
  size_t bytes = 0;
  for (const auto* pieces : {&snapshot.model, &snapshot.optimizer})
    for (const ckpt::Piece& piece : *pieces) bytes += piece.values.bytes();
  return static_cast<int64_t>(bytes);
}

}  // namespace

RunCheckpoints::RunCheckpoints(Engine& engine, const RunConfig& config, const Log& log, Guards& guards,
                               const Recovery& recovery, const FolderHandle& run_folder, std::string folder,
                               std::function<void(const std::string&)> note)
    : engine_(engine),
      config_(config),
      log_(log),
      guards_(guards),
      recovery_(recovery),
      run_folder_(run_folder),
      folder_(std::move(folder)),
      note_(std::move(note)),
      saver_(folder_, save_options(), config.checkpoint.async, engine.account(), engine.host().stream) {}

bool RunCheckpoints::lockstep() const {
  sync::AsyncWorkers* const workers = engine_.strategy().async_workers();
  return !workers || workers->lockstep();
}

// A recorded order has the meetings of checkpoints in it, which a replay makes after the same steps.
bool RunCheckpoints::may_be_automatic() const {
  return config_.sync.ps.record.empty() && config_.sync.ps.replay.empty();
}

// Values, moments and a longer copy of the values, shared by all ranks.
double RunCheckpoints::expected_cost_s() const {
  const double bytes = 16.0 * static_cast<double>(engine_.num_parameters()) / engine_.standing().size();
  return kExpected_s + bytes / kExpectedBytesPer_s;
}

void RunCheckpoints::prepare() {
  step_began_s_ = now_s();
  const auto periodic = [&](double least_s, double most_s) {
    return Periodic{
        CheckpointInterval({.least_s = least_s, .most_s = most_s, .expected_s = expected_cost_s()}, step_began_s_)};
  };
  if (config_.checkpoint.every.automatic() && config_.checkpoint.at_end && may_be_automatic())
    auto_checkpoints_ = periodic(kCheckpointsAtMost_s, kCheckpointsAtLeast_s);
  const bool automatic = config_.checkpoint.snapshot_every.automatic();
  if (automatic ? !may_be_automatic() : *config_.checkpoint.snapshot_every.steps == 0) return;
  const std::string offered = broadcast_text(engine_.standing().ranks, recovery_.snapshots);
  snapshot_folder_ = agree_on_snapshots(engine_.standing(), config_.checkpoint.snapshot_dir, offered);
  if (snapshot_folder_.empty()) {
    if (first() && !automatic)
      log_.warn(
          "checkpoint.snapshot_every = {}: no folder for snapshots. Start the run with `espalier launch` on one host, "
          "or name a folder that all ranks see: checkpoint.snapshot_dir",
          *config_.checkpoint.snapshot_every.steps);
    if (first() && automatic && !offered.empty())
      log_.warn(
          "no snapshots in memory: the ranks are on several hosts. A lost rank costs the work since the last "
          "checkpoint on disk; checkpoint.snapshot_dir names a folder that all hosts see");
    return;
  }
  check_snapshot_folder();
  ckpt::SaveOptions options = save_options();
  options.keep = automatic ? kAutoSnapshotsKept : kSnapshotsKept;
  options.add_files = nullptr;
  snapshots_ = std::make_unique<Saver>(snapshot_folder_, options, true, engine_.account(), engine_.host().stream);
  if (automatic) auto_snapshots_ = periodic(lockstep() ? kSnapshotsAtMost_s : kMeetingsAtMost_s, kSnapshotsAtLeast_s);
}

// Collective: one that cannot be made would cost every snapshot a timeout.
void RunCheckpoints::check_snapshot_folder() const {
  std::string refusal;
  try {
    if (first()) ckpt::make_folders(snapshot_folder_, 0700);
  } catch (const IoError& error) {
    refusal = error.what();
  }
  refusal = broadcast_text(engine_.standing().ranks, refusal);
  if (!refusal.empty())
    throw IoError(fmt::format("checkpoint.snapshot_dir = {}: {}", config_.checkpoint.snapshot_dir, refusal));
}

ckpt::SaveOptions RunCheckpoints::save_options() {
  const Standing& standing = engine_.standing();
  ckpt::SaveOptions options;
  if (recovery_.peer_lost) options.peer_lost = recovery_.peer_lost;
  options.check_folder = [this] { run_folder_.check(); };
  options.keep = static_cast<int>(config_.checkpoint.keep);
  options.rank = standing.rank();
  options.world = standing.size();
  // Ranks that go at their own pace may come much later than others.
  if (!lockstep() || engine_.strategy().divergent_replicas()) options.begin_timeout = options.timeout;
  options.token = broadcast_text(standing.ranks, fmt::format("{:08x}{:08x}", random_(), random_()));
  options.add_files = [this](const std::string& folder) {
    if (engine_.feed().tokenizer && config_.data.tokenizer != "byte") {
      engine_.feed().tokenizer->save(folder);
      write_hf_settings(hf_settings_, folder, false);
    }
  };
  return options;
}

double RunCheckpoints::cost_s(const std::optional<Periodic>& periodic, const Saver* saver) const {
  return periodic && saver ? periodic->held_s + std::max(saver->writer_s(), periodic->slowed_s) : 0;
}

// Writing takes cores, caches and memory bandwidth from the steps beside it. An evaluation beside it is not its cost,
// so a step counts for twice its usual time at most.
void RunCheckpoints::measure_slowdown() {
  const bool snapshot = snapshots_ && snapshots_->writing(), checkpoint = saver_.writing();
  if (!wrote_beside_ && !snapshot && !checkpoint) {
    usual_step_s_ = usual_step_s_ == 0 ? step_s_ : 0.9 * usual_step_s_ + 0.1 * step_s_;
  } else if (usual_step_s_ > 0) {
    const double slowed = std::clamp(step_s_ - usual_step_s_, 0.0, usual_step_s_);
    if (auto* periodic = last_was_snapshot_ ? &auto_snapshots_ : &auto_checkpoints_; *periodic)
      (*periodic)->slowed_s += slowed;
  }
}

// One at a time, and none while the one before is being written.
PeriodicSave RunCheckpoints::wish() const {
  const double now = now_s();
  if (auto_snapshots_ && !snapshots_->writing() && auto_snapshots_->interval.due_after_step(now, step_s_))
    return PeriodicSave::snapshot;
  if (auto_checkpoints_ && !saver_.writing() && auto_checkpoints_->interval.due_after_step(now, step_s_))
    return PeriodicSave::checkpoint;
  return PeriodicSave::none;
}

StepNotice RunCheckpoints::notice() const {
  StepNotice notice;
  if (first() && lockstep()) notice.save = wish();
  notice.snapshot_cost_s = cost_s(auto_snapshots_, snapshots_.get());
  notice.checkpoint_cost_s = cost_s(auto_checkpoints_, &saver_);
  return notice;
}

PeriodicSave RunCheckpoints::agreed(const StepResult& result) {
  if (!auto_snapshots_ && !auto_checkpoints_) return PeriodicSave::none;
  StepNotice all = result.agreed;
  const int64_t step = engine_.num_steps();
  if (!lockstep() && step < look_at_) return PeriodicSave::none;
  if (!lockstep()) {
    double costs[] = {cost_s(auto_snapshots_, snapshots_.get()), cost_s(auto_checkpoints_, &saver_)};
    comm::Communicator* const ranks = engine_.standing().ranks;
    if (ranks) ranks->all_reduce(costs, costs, std::size(costs), DType::f64, comm::ReduceOp::max);
    all.snapshot_cost_s = costs[0];
    all.checkpoint_cost_s = costs[1];
  }
  if (auto_snapshots_) auto_snapshots_->interval.set_total_cost(all.snapshot_cost_s);
  if (auto_checkpoints_) auto_checkpoints_->interval.set_total_cost(all.checkpoint_cost_s);
  if (lockstep()) return all.save;
  // At most twice the steps so far: the first ones do not tell how long a step is.
  int64_t next = std::max<int64_t>(1, num_steps_);
  for (const auto* one : {&auto_snapshots_, &auto_checkpoints_})
    if (*one) next = std::min(next, (*one)->interval.steps_to_next_look(now_s(), step_s_));
  int64_t words[] = {static_cast<int64_t>(wish()), step + next};
  if (comm::Communicator* ranks = engine_.standing().ranks) ranks->broadcast(words, std::size(words), DType::i64, 0);
  look_at_ = words[1];
  return static_cast<PeriodicSave>(words[0]);
}

void RunCheckpoints::end_step(const StepResult& result, double loss_scale_before) {
  ++num_steps_;
  settle_snapshot();
  const bool searching = result.skipped && engine_.loss_scale().scale() < loss_scale_before;
  health_.step(engine_.num_steps(), result.loss, result.skipped, searching);
}

void RunCheckpoints::save_if_due(const StepResult& result, const std::function<void()>& before) {
  const int64_t step = engine_.num_steps();
  step_s_ = now_s() - step_began_s_;
  measure_slowdown();
  const PeriodicSave due = agreed(result);
  if (due == PeriodicSave::checkpoint || config_.checkpoint.every.ends_at(step)) {
    before();
    last_was_snapshot_ = false;
    checkpoint(OnFailure::go_on, due == PeriodicSave::checkpoint);
  } else if (snapshots_ && (due == PeriodicSave::snapshot || config_.checkpoint.snapshot_every.ends_at(step))) {
    before();
    last_was_snapshot_ = true;
    snapshot(due == PeriodicSave::snapshot);
  }
  wrote_beside_ = saver_.writing() || (snapshots_ && snapshots_->writing());
  step_began_s_ = now_s();
}

void RunCheckpoints::save_last() {
  checkpoint(OnFailure::stop, false);
}

// On the way a disk that is full, or a file server that is away, costs this checkpoint and not the run: the one before
// is untouched, and the next comes in its time. All ranks learn of it alike (ckpt::save).
template <typename F>
bool RunCheckpoints::succeeds(OnFailure on_failure, F&& write) {
  try {
    write();
    return true;
  } catch (const obs::FileChanged&) {
    throw;
  } catch (const IoError& error) {
    if (on_failure == OnFailure::stop) throw;
    if (first()) log_.warn("{}; training goes on without this checkpoint", error.what());
    return false;
  }
}

ckpt::Snapshot RunCheckpoints::state_now() {
  guards_.before_checkpoint();
  ckpt::Snapshot snapshot = snapshot_of(engine_, config_);
  snapshot.state["restarts"] = restarts_;
  return snapshot;
}

void RunCheckpoints::checkpoint(OnFailure on_failure, bool automatic) {
  run_folder_.check();
  const double begun = now_s();
  if (automatic) {
    tell_cost(*auto_checkpoints_, "checkpoints", "checkpoint.every");
    auto_checkpoints_->interval.begin(begun);
  }
  // The one before, where it was written meanwhile. Snapshots of copies that were compared stay as they are.
  succeeds(OnFailure::go_on, [&] { saver_.finish(); });
  ckpt::Snapshot snapshot = state_now();
  const State state = judge(snapshot);
  if (!state.good) {
    tell_diverged();
    if (on_failure == OnFailure::stop) keep_diverged(std::move(snapshot));
    return;
  }
  if (automatic && !fits_on_disk(state.bytes)) return;
  const bool in_background = config_.checkpoint.async || (automatic && fits_in_memory(state.bytes, 1));
  if (!succeeds(on_failure, [&] { saver_.save(std::move(snapshot), in_background); })) return;
  note_(fmt::format("checkpoint {}/step-{}", folder_, engine_.num_steps()));
  if (automatic) auto_checkpoints_->held_s += now_s() - begun;
}

void RunCheckpoints::snapshot(bool automatic) {
  const double begun = now_s();
  if (automatic) {
    tell_cost(*auto_snapshots_, "snapshots", "checkpoint.snapshot_every");
    auto_snapshots_->interval.begin(begun);
  }
  // Memory that is full costs the snapshot and not the run.
  if (automatic && !succeeds(OnFailure::go_on, [&] { snapshots_->finish(); })) {
    if (first()) log_.warn("no further snapshots; checkpoints on disk go on");
    auto_snapshots_.reset();
    return;
  }
  ckpt::Snapshot snapshot = state_now();
  const State state = judge(snapshot);
  if (!state.good) return tell_diverged();
  if (automatic && !std::exchange(memory_checked_, true) && !fits_in_memory(state.bytes, kCopiesOfState)) {
    if (first())
      log_.warn(
          "no snapshots in memory: {} copies of {} need more than half of this host's free memory, or two of them more "
          "than {} has. A lost rank costs the work since the last checkpoint on disk",
          kCopiesOfState, format_bytes(static_cast<uint64_t>(state.bytes)), snapshot_folder_);
    auto_snapshots_.reset();
    return;
  }
  succeeds(OnFailure::go_on, [&] { snapshots_->save(std::move(snapshot)); });
  if (automatic) {
    auto_snapshots_->held_s += now_s() - begun;
  } else {
    snapshot_to_settle_ = true;
  }
}

// After a fixed number of steps: a step counts once the snapshot before it is whole, so that a lost rank costs no more
// than that number. Automatic ones are bounded by time, and nothing waits for them.
void RunCheckpoints::settle_snapshot() {
  if (!std::exchange(snapshot_to_settle_, false)) return;
  guards_.begin(comm::Phase::checkpoint);
  if (!succeeds(OnFailure::go_on, [&] { snapshots_->finish(); }) && recovery_.peer_lost && recovery_.peer_lost())
    throw loss_told(recovery_);
}

void RunCheckpoints::tell_cost(Periodic& periodic, const char* what, const char* key) {
  if (!first() || periodic.told_cost || !periodic.interval.over_share()) return;
  periodic.told_cost = true;
  log_.warn("{} take more than 1 % of the time, to bound the work at risk; {} = a number of steps, or 0, changes that",
            what, key);
}

// Collective. Whether a run can resume from it, by the steps behind it and its values, and its size on all ranks.
RunCheckpoints::State RunCheckpoints::judge(const ckpt::Snapshot& snapshot) {
  int64_t good = health_.problem().empty() ? 1 : 0;
  for (const ckpt::Piece& piece : snapshot.model) {
    if (good == 0) break;
    if (piece.read || !is_floating(piece.values.dtype())) continue;
    const device::Stream stream =
        device::on_host(piece.values.data()) ? engine_.host().stream : engine_.context().stream;
    if (!kernel::all_finite(piece.values.data(), piece.values.count(), piece.values.dtype(), stream)) {
      health_.values_not_finite(engine_.num_steps());
      good = 0;
    }
  }
  int64_t bytes = bytes_of(snapshot);
  if (comm::Communicator* ranks = engine_.standing().ranks) {
    ranks->all_reduce(&good, &good, 1, DType::i64, comm::ReduceOp::min);
    ranks->all_reduce(&bytes, &bytes, 1, DType::i64, comm::ReduceOp::sum);
  }
  if (good != 0) told_diverged_ = false;
  return {good != 0, bytes};
}

// Collective. Whether half of the free memory has room for so many copies of the state of all ranks, and the folder of
// snapshots for two.
bool RunCheckpoints::fits_in_memory(int64_t bytes, int copies) {
  const auto each = static_cast<uint64_t>(bytes);
  int64_t fits = device::available_memory_bytes() / 2 >= static_cast<uint64_t>(copies) * each ? 1 : 0;
  if (copies > 1 && free_bytes(snapshot_folder_) / 4 * 3 < 2 * each) fits = 0;
  if (comm::Communicator* ranks = engine_.standing().ranks)
    ranks->all_reduce(&fits, &fits, 1, DType::i64, comm::ReduceOp::min);
  return fits != 0;
}

// Collective. Beside this one there has to be room for the last one, which the run must write.
bool RunCheckpoints::fits_on_disk(int64_t bytes) {
  int64_t fits = !first() || free_bytes(folder_) >= 2 * static_cast<uint64_t>(bytes) ? 1 : 0;
  if (comm::Communicator* ranks = engine_.standing().ranks)
    ranks->all_reduce(&fits, &fits, 1, DType::i64, comm::ReduceOp::min);
  if (fits == 0 && first() && !std::exchange(told_disk_, true))
    log_.warn("{}: less free space than two checkpoints of {} take: none is written before the last one", folder_,
              format_bytes(static_cast<uint64_t>(bytes)));
  return fits != 0;
}

Json RunCheckpoints::summary() const {
  return {{"snapshots", auto_snapshots_ ? auto_snapshots_->interval.num() : 0},
          {"checkpoints", auto_checkpoints_ ? auto_checkpoints_->interval.num() : 0},
          {"cost_s", cost_s(auto_snapshots_, snapshots_.get()) + cost_s(auto_checkpoints_, &saver_)}};
}

void RunCheckpoints::tell_diverged() {
  const std::string problem = health_.problem();
  if (!first() || std::exchange(told_diverged_, true)) return;
  log_.warn("step {}: {}: no checkpoint is written", engine_.num_steps(),
            problem.empty() ? "another rank's loss or values are not finite" : problem);
}

// Not among the checkpoints that a run resumes by itself.
void RunCheckpoints::keep_diverged(ckpt::Snapshot snapshot) {
  ckpt::SaveOptions options = save_options();
  options.keep = 1;
  Saver saver(fmt::format("{}/{}", folder_, kDivergedFolder), options, false, engine_.account(), engine_.host().stream);
  saver.save(std::move(snapshot));
  diverged_path_ = saver.finish();
}

}  // namespace esp::train
