#include "esp/train/trainer.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/ckpt/steps.h"
#include "esp/device/gpu.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/peak.h"
#include "esp/model/counts.h"
#include "esp/obs/event_log.h"
#include "esp/obs/file.h"
#include "esp/train/collective_spans.h"
#include "esp/train/gather_texts.h"
#include "esp/train/guards.h"
#include "esp/train/loaded.h"
#include "esp/train/preflight.h"
#include "esp/train/reports.h"
#include "esp/train/run_folder.h"
#include "esp/train/saver.h"
#include "esp/train/signals.h"
#include "esp/train/snapshot.h"

namespace esp::train {
namespace {

// So many steps in a row without a finite gradient are no bad batch: the run is lost.
constexpr int kMostSkippedSteps = 50;
constexpr int64_t kTraceEvery_ns = 3'000'000'000;
constexpr size_t kMaxSummaryBytes = size_t{1} << 20;
constexpr char kRefused = '!';      // begins what is told to all ranks instead of a path
constexpr char kNothingLeft = '.';  // the same, of a run that is done

double seconds_since(int64_t begun_ns) {
  return static_cast<double>(now_ns() - begun_ns) * 1e-9;
}

// What a run keeps while ranks are lost and meet again.
struct Life {
  const Recovery& recovery;
  const StopSignals signals = {};
  const int64_t started = now_ns();
  Replica kept = {};
  std::optional<RunLock> lock = {};  // the first rank's
  int num_reforms = 0;
  int64_t lost_at = 0;
};

class Run {
 public:
  Run(RunConfig& config, const Log& log, const Progress::Options& options, const Standing& standing, Life& life)
      : life_(life),
        config_(config),
        log_(log),
        standing_(standing),
        folder_(run_folder_of(config)),
        checkpoints_(config.checkpoint.dir.empty() ? folder_ + "/checkpoints" : config.checkpoint.dir),
        progress_(with_steps(options, config.train.steps)),
        tracer_(standing.rank()),
        engine_(enter(config, folder_, standing, life, log), log, standing,
                config.log.trace ? tracer_.add_row("compute") : nullptr) {}

  TrainOutcome go() {
    prepare_snapshots();
    const int restarts = resume();
    if (outcome_.nothing_left) return outcome_;
    settled_ = true;
    if (first()) obs::write_whole_file(folder_ + "/run.toml", to_toml(resolved()));
    Reports reports(folder_, config_, engine_, progress_);
    introduce();
    const double peak = kernel::fma_peak(storage_type(config_.train.precision), engine_.context().stream);
    // Of one rank: figures of speed are per rank, as its peak is.
    const double tokens = static_cast<double>(engine_.tokens_per_step()) / standing_.size();
    const double flops = engine_.model().flops_per_token(config_.model.seq_len) * tokens;
    const double again = recomputed_share() * tokens *
                         model::recomputed_flops_per_token(engine_.model().config(), config_.model.seq_len,
                                                           parse_recompute(config_.train.recompute));
    while (engine_.num_steps() < config_.train.steps && outcome_.why == TrainOutcome::Why::done) {
      // Copies that seldom hear of each other would go on alone for a while.
      if (forsaken()) throw loss_told(life_.recovery);
      StepReport report;
      guards_.begin_step();
      const int64_t begun = now_ns();
      report.result = engine_.step(asked_to_stop());
      report.seconds = seconds_since(begun);
      report.step = engine_.num_steps();
      guards_.end_step(report.result, report.seconds);
      settle_snapshot();
      count_skipped(report.result.skipped);
      for (const std::string& line : report.result.notes) note(line);
      report.flops_per_s = flops / report.seconds;
      report.mfu = peak > 0 ? report.flops_per_s / peak : 0;
      report.hfu = report.mfu * (1 + again / flops);
      report.memory_bytes = engine_.account().use(device::MemoryTier::device).peak;
      const bool last = report.step == config_.train.steps || report.result.stop;
      if (report.result.stop) outcome_.why = asked_to_stop_by();
      if ((last && outcome_.why != TrainOutcome::Why::signal) ||
          (config_.train.eval_every > 0 && report.step % config_.train.eval_every == 0)) {
        guards_.begin(comm::Phase::evaluation);
        if (const double loss = engine_.evaluate(config_.train.eval_batches); !std::isnan(loss)) report.val_loss = loss;
      }
      for (const std::string& line : engine_.strategy().take_notes()) note(line);
      if (sync::Apart* apart = engine_.strategy().apart()) report.measures = apart->take_measures();
      reports.step(report, last || report.step % config_.log.every == 0 || report.val_loss);
      if (config_.log.trace && !last) show_trace();
      if (std::isfinite(report.result.loss)) {
        not_finite_since_ = 0;
      } else if (not_finite_since_ == 0) {
        not_finite_since_ = report.step;
      }
      if (config_.checkpoint.every > 0 && report.step % config_.checkpoint.every == 0 && !last)
        checkpoint(OnFailure::go_on);
      else if (snapshots_ && !last && report.step % config_.checkpoint.snapshot_every == 0)
        snapshot();
    }
    if (engine_.num_steps() >= config_.train.steps) outcome_.why = TrainOutcome::Why::done;
    if (engine_.num_steps() > resumed_at_ && config_.checkpoint.at_end) checkpoint(OnFailure::stop);
    if (std::string written = saver_.finish(); !written.empty()) outcome_.checkpoint = written;
    reports.finish(seconds_since(life_.started), restarts);
    outcome_.final_loss = reports.final_loss();
    if (config_.log.trace) write_traces();
    warn_not_finite();
    outcome_.folder = folder_;
    outcome_.steps = engine_.num_steps();
    return outcome_;
  }

  // What the ranks can go on from, should this one live on. A state that was not yet made good keeps the one before.
  void keep_state() {
    if (settled_ && copies_are_whole(engine_)) take_replica(engine_, restarts_, life_.kept);
  }

 private:
  static Progress::Options with_steps(Progress::Options options, int64_t steps) {
    options.steps = steps;
    return options;
  }
  // Collective: all ranks hear that the folder is another run's.
  static RunConfig& enter(RunConfig& config, const std::string& folder, const Standing& standing, Life& life,
                          const Log& log) {
    std::string refusal;
    make_run_folder(folder);
    try {
      if (standing.rank() == 0 && !life.lock) life.lock.emplace(folder, log);
    } catch (const UsageError& error) {
      refusal = kRefused + std::string(error.what());
    } catch (const IoError& error) {
      throw IoError(fmt::format("run folder {}: {}; run.dir or --run-dir names another", folder, error.what()));
    }
    refusal = broadcast_text(standing.ranks, refusal);
    if (refusal.starts_with(kRefused)) throw UsageError(refusal.substr(1));
    return config;
  }

  // Returns how often this run had been started before.
  int resume() {
    const Healed healed = heal(engine_, life_.kept, life_.num_reforms > 0);
    if (healed.source >= 0) {
      restarts_ = static_cast<int>(life_.kept.restarts) + 1;
      life_.kept.bytes = {};
      tell_recovery("memory", fmt::format("rank {}'s memory", healed.source), healed);
      return restarts_;
    }
    const std::string& wish = config_.checkpoint.resume;
    std::unique_ptr<ckpt::Checkpoint> checkpoint;
    // One rank looks: two that look at different moments could see different ones.
    std::string from = broadcast_text(standing_.ranks, first() ? newest(checkpoint) : "");
    if (from.starts_with(kRefused)) throw IoError(from.substr(1));
    const bool snapshot = !from.empty() && !snapshot_folder_.empty() && from.starts_with(snapshot_folder_ + "/");
    if (from.empty() && wish != "auto" && wish != "none") {
      if (ckpt::is_hf_folder(wish))
        throw UsageError(
            fmt::format("{} is no checkpoint to resume but a Hugging Face folder; model.init = \"{}\" begins "
                        "with its parameters",
                        wish, wish));
      from = checkpoint_at(wish);
    }
    if (from.empty()) {
      begin();
      settle_folder(from);
      if (healed.num_survivors > 0) tell_recovery("anew", "the beginning", healed);
      return 0;
    }
    if (!checkpoint) checkpoint = ckpt::open_checkpoint(from);
    const std::string said = restore(engine_, config_, *checkpoint);
    // A snapshot goes with the job: at the end there is a checkpoint, whatever it began with.
    if (!snapshot) {
      resumed_at_ = engine_.num_steps();
      outcome_.checkpoint = from;
    }
    settle_folder(from);
    if (outcome_.nothing_left) return 0;
    restarts_ = checkpoint->state().value("restarts", 0) + 1;
    note(fmt::format("resumed from {} at step {}", from, engine_.num_steps()));
    tell_recovery(snapshot ? "snapshot" : "disk", from, healed);
    if (!said.empty()) note(said);
    return restarts_;
  }

  // A job that a launcher starts once more goes on from its own checkpoints, also when it was to begin with another
  // one, or with none: the former run's are not among them any more.
  bool goes_on() const { return config_.checkpoint.resume == "auto" || life_.recovery.again || life_.num_reforms > 0; }

  // Collective, before anything is written: whether there is anything to do, and the folder cleared of the run before
  // where this one begins anew. `from`: what it begins with, or nothing.
  void settle_folder(const std::string& from) {
    const std::string said = broadcast_text(standing_.ranks, first() ? settle(from) : "");
    if (said.starts_with(kRefused)) throw IoError(said.substr(1));
    outcome_.nothing_left = said.starts_with(kNothingLeft);
    outcome_.folder = folder_;
    outcome_.steps = engine_.num_steps();
    if (!outcome_.nothing_left && !said.empty()) note(said);
  }

  std::string settle(const std::string& from) {
    std::error_code elsewhere;
    const bool ours = !from.empty() &&
                      std::filesystem::equivalent(std::filesystem::path(from).parent_path(), checkpoints_, elsewhere);
    if (resumed_at_ >= config_.train.steps && (!ours || summed_up())) return {kNothingLeft};
    if (goes_on()) return {};
    try {
      if (!snapshot_folder_.empty()) set_aside(snapshot_folder_, snapshot_folder_, -1);
      const std::string where = set_aside(folder_, checkpoints_, ours ? engine_.num_steps() : -1);
      if (where.empty()) return {};
      return ours ? fmt::format("checkpoints of later steps are now in {}", where)
                  : fmt::format("the run that was in {} is now in {}", folder_, where);
    } catch (const IoError& error) {
      return kRefused + std::string(error.what());
    }
  }

  // Whether the end of the run was told: not where it was lost between its last checkpoint and its summary.
  bool summed_up() const {
    try {
      const Json summary = Json::parse(obs::read_whole_file(folder_ + "/summary.json", kMaxSummaryBytes));
      return summary.value("steps", int64_t{0}) >= resumed_at_;
    } catch (const std::exception&) {
      return false;
    }
  }

  // Which rung of the ladder was taken, for people and for events.jsonl.
  void tell_recovery(const char* rung, const std::string& from, const Healed& healed) {
    if (!first()) return;
    const bool in_place = healed.num_survivors > 0;
    if (in_place)
      note(fmt::format("going on in place from {} at step {}; new: rank {}", from, engine_.num_steps(),
                       fmt::join(healed.newcomers, ", ")));
    Json event = {{"event", "recovered"},     {"rung", rung},
                  {"in_place", in_place},     {"from", from},
                  {"restarts", restarts_},    {"step", engine_.num_steps()},
                  {"world", standing_.size()}};
    if (in_place) event["newcomers"] = healed.newcomers;
    if (life_.lost_at > 0) event["seconds"] = seconds_since(life_.lost_at);
    obs::EventLog(folder_ + "/events.jsonl", {.lines_per_write = 1, .sync = false, .stamp = true})
        .append(std::move(event));
  }

  // The path of the newest checkpoint that is as it was written, opened; nothing; or what is wrong with all of them.
  std::string newest(std::unique_ptr<ckpt::Checkpoint>& opened) {
    try {
      std::vector<std::string> skipped;
      auto origin = goes_on() ? newest_origin(snapshot_folder_, checkpoints_, skipped) : std::nullopt;
      for (const std::string& one : skipped) log_.warn("passed over checkpoint {}", one);
      if (!origin) return {};
      opened = std::move(origin->found.checkpoint);
      return origin->found.path;
    } catch (const IoError& error) {
      return kRefused + std::string(error.what());
    }
  }

  void begin() {
    const std::string& init = config_.model.init;
    if (init.empty()) return;
    std::vector<std::string> fresh = begin_with(engine_, config_, init);
    if (engine_.mesh().shape().pp > 1) fresh = told_by_any(fresh);
    note(fmt::format("parameters from {}{}", init,
                     fresh.empty() ? "" : fmt::format("; new: {}", fmt::join(fresh, ", "))));
  }

  // The head, which may be new, is the last stage's; the first rank speaks.
  std::vector<std::string> told_by_any(const std::vector<std::string>& mine) {
    std::vector<std::string> all;
    for (const std::string& text : gather_texts(standing_.ranks, Json(mine).dump()))
      for (const std::string& name : Json::parse(text).get<std::vector<std::string>>())
        if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    return all;
  }

  // With the copies that dp = 0 stands for.
  RunConfig resolved() const {
    RunConfig config = config_;
    config.parallel.dp = engine_.mesh().shape().dp;
    return config;
  }

  void introduce() {
    const parallel::MeshShape& mesh = engine_.mesh().shape();
    const int64_t micro = config_.train.global_batch / mesh.dp / config_.train.micro_batch;
    const std::string divided = mesh.dp == mesh.size() ? "" : ", " + layout_of(config_, standing_.size()).text();
    const std::string ranks =
        standing_.size() == 1 ? "" : fmt::format("{} ranks ({}{}) of ", standing_.size(), config_.sync.method, divided);
    note(fmt::format("{}: {} with {} parameters, {} on {}{}; {} of {} × {} ({} micro-batch{} of {})", config_.run.name,
                     config_.model.preset.empty() ? config_.model.arch : config_.model.preset, engine_.num_parameters(),
                     config_.train.precision, ranks, counted(engine_.context().stream.num_threads(), "thread"),
                     counted(config_.train.steps, "step"), counted(config_.train.global_batch, "sequence"),
                     counted(config_.model.seq_len, "token"), micro, micro == 1 ? "" : "es",
                     config_.train.micro_batch));
  }

  bool first() const { return standing_.rank() == 0; }
  void note(const std::string& line) {
    if (first()) progress_.note(line);
  }

  // One rank's wish is everybody's: the step carries it to the others.
  bool out_of_time() const {
    return config_.train.max_minutes > 0 && seconds_since(life_.started) > config_.train.max_minutes * 60;
  }
  bool asked_to_stop() const { return life_.signals.received() != 0 || out_of_time(); }
  TrainOutcome::Why asked_to_stop_by() const {
    return life_.signals.received() == 0 && out_of_time() ? TrainOutcome::Why::time : TrainOutcome::Why::signal;
  }

  std::string live_trace() const { return fmt::format("{}/ranks/trace-{}.json", folder_, standing_.rank()); }

  // For those who watch: this rank's rows so far. The longer they are the longer the next time waits, so that it stays
  // a small part of the whole.
  void show_trace() {
    if (now_ns() < trace_due_ns_) return;
    ckpt::make_folders(folder_ + "/ranks", 0700);
    obs::write_trace(live_trace(), tracer_.trace());
    trace_due_ns_ = now_ns() + std::max(kTraceEvery_ns, (now_ns() - life_.started) / 4);
  }

  // The first rank's file has everybody's rows; ranks of one host share a clock.
  void write_traces() {
    if (standing_.flight) draw_collectives(*standing_.flight, tracer_);
    const std::vector<std::string> texts = gather_texts(standing_.ranks, tracer_.trace().dump());
    std::error_code gone;
    std::filesystem::remove(live_trace(), gone);
    if (!first()) return;
    std::vector<Json> traces;
    for (const std::string& text : texts) traces.push_back(Json::parse(text));
    obs::write_trace(folder_ + "/trace.json", obs::merge_traces(traces, std::vector<int64_t>(traces.size())));
  }

  void count_skipped(bool skipped) {
    num_skipped_ = skipped ? num_skipped_ + 1 : 0;
    if (num_skipped_ >= kMostSkippedSteps)
      throw Error(
          ExitCode::internal,
          fmt::format("{} steps in a row had gradients that are not finite (step {}); lower train.lr, or resume "
                      "an earlier checkpoint",
                      num_skipped_, engine_.num_steps()));
  }

  // Of the model's blocks, the part that is recomputed where any is.
  double recomputed_share() const {
    const auto named = static_cast<double>(config_.train.recompute_layers * engine_.mesh().shape().pp);
    return named < 0 ? 1 : std::min(1.0, named / static_cast<double>(config_.model.layers));
  }

  bool forsaken() const { return life_.recovery.peer_lost && life_.recovery.peer_lost(); }

  // In this host's memory, so that going on without a lost rank costs few steps. Written while the next step computes.
  void prepare_snapshots() {
    if (config_.checkpoint.snapshot_every == 0) return;
    snapshot_folder_ = agree_on_snapshots(standing_, config_.checkpoint.snapshot_dir, life_.recovery.snapshots);
    if (snapshot_folder_.empty()) {
      if (first())
        log_.warn(
            "checkpoint.snapshot_every = {}: no snapshots: `espalier launch --max-restarts` on one host lends a folder "
            "for them, or checkpoint.snapshot_dir names one that all ranks see",
            config_.checkpoint.snapshot_every);
      return;
    }
    ckpt::SaveOptions options = save_options();
    options.keep = 2;
    options.add_files = nullptr;
    snapshots_ = std::make_unique<Saver>(snapshot_folder_, options, true, engine_.account(), engine_.host().stream);
  }

  void snapshot() {
    guards_.before_checkpoint();
    ckpt::Snapshot state = snapshot_of(engine_, config_);
    state.state["restarts"] = restarts_;
    // Memory that is full costs the snapshot and not the run.
    succeeds(OnFailure::go_on, [&] { snapshots_->save(std::move(state)); });
    snapshot_under_way_ = true;
  }

  // A step counts once the snapshot before it is whole: with a rank that is lost now no more than snapshot_every go.
  void settle_snapshot() {
    if (!std::exchange(snapshot_under_way_, false)) return;
    guards_.begin(comm::Phase::checkpoint);
    if (!succeeds(OnFailure::go_on, [&] { snapshots_->finish(); }) && forsaken()) throw loss_told(life_.recovery);
  }

  ckpt::SaveOptions save_options() {
    ckpt::SaveOptions options;
    if (life_.recovery.peer_lost) options.forsaken = life_.recovery.peer_lost;
    options.keep = static_cast<int>(config_.checkpoint.keep);
    options.rank = standing_.rank();
    options.world = standing_.size();
    // Ranks that go at their own pace may come much later than others.
    sync::Clocks* const clocks = engine_.strategy().clocks();
    if ((clocks && !clocks->lockstep()) || engine_.strategy().apart()) options.begin_timeout = options.timeout;
    options.token = broadcast_text(standing_.ranks, fmt::format("{:08x}{:08x}", random_(), random_()));
    options.add_files = [this](const std::string& folder) {
      if (engine_.feed().tokenizer && config_.data.tokenizer != "byte") engine_.feed().tokenizer->save(folder);
    };
    return options;
  }

  // On the way a disk that is full, or a file server that is away, costs this checkpoint and not the run: the one
  // before is untouched, and the next comes in its time. All ranks learn of it alike (ckpt::save).
  enum class OnFailure { go_on, stop };
  template <typename F>
  bool succeeds(OnFailure on_failure, F&& write) {
    try {
      write();
      return true;
    } catch (const IoError& error) {
      if (on_failure == OnFailure::stop) throw;
      if (first()) log_.warn("{}; training goes on without this checkpoint", error.what());
      return false;
    }
  }

  void checkpoint(OnFailure on_failure) {
    guards_.before_checkpoint();
    succeeds(OnFailure::go_on, [&] { saver_.finish(); });  // the one before, where it was written meanwhile
    ckpt::Snapshot snapshot = snapshot_of(engine_, config_);
    snapshot.state["restarts"] = restarts_;
    if (!good(snapshot)) return keep_apart(std::move(snapshot), on_failure);
    if (!succeeds(on_failure, [&] { saver_.save(std::move(snapshot)); })) return;
    note(fmt::format("checkpoint {}/step-{}", checkpoints_, engine_.num_steps()));
  }

  // Collective. Whether a run can go on from it: its last loss and its values are numbers, of what lies in memory.
  // Ranks that go at their own pace do not wait for each other to find out.
  bool good(const ckpt::Snapshot& snapshot) {
    sync::Clocks* const clocks = engine_.strategy().clocks();
    if (clocks && !clocks->lockstep()) return true;
    int64_t finite = not_finite_since_ == 0 ? 1 : 0;
    for (const ckpt::Piece& piece : snapshot.model) {
      if (finite == 0) break;
      if (piece.read || !is_floating(piece.values.dtype())) continue;
      const device::Stream stream =
          device::on_host(piece.values.data()) ? engine_.host().stream : engine_.context().stream;
      if (!kernel::all_finite(piece.values.data(), piece.values.count(), piece.values.dtype(), stream)) finite = 0;
    }
    if (standing_.ranks) standing_.ranks->all_reduce(&finite, &finite, 1, DType::i64, comm::ReduceOp::min);
    return finite != 0;
  }

  // Not among the checkpoints that a run resumes by itself. On the way the next comes in its time; the last is kept.
  void keep_apart(ckpt::Snapshot snapshot, OnFailure on_failure) {
    if (not_finite_since_ == 0) not_finite_since_ = engine_.num_steps();
    if (on_failure == OnFailure::go_on) {
      if (first()) log_.warn("step {}: loss or values are not finite: no checkpoint is written", engine_.num_steps());
      return;
    }
    ckpt::SaveOptions options = save_options();
    options.keep = 1;
    Saver apart(fmt::format("{}/{}", checkpoints_, kNotFiniteFolder), options, false, engine_.account(),
                engine_.host().stream);
    apart.save(std::move(snapshot));
    kept_apart_ = apart.finish();
  }

  void warn_not_finite() {
    if (!first() || not_finite_since_ == 0) return;
    log_.warn(
        "loss or values are not finite since step {}: the run has diverged, or its data are bad; {}{}; a lower "
        "train.lr or a longer train.warmup may help",
        not_finite_since_,
        outcome_.checkpoint.empty() ? "there is no good checkpoint"
                                    : fmt::format("the last good checkpoint is {}", outcome_.checkpoint),
        kept_apart_.empty() ? "" : fmt::format(", and the state as it is lies in {}", kept_apart_));
  }

  Life& life_;
  RunConfig& config_;
  Log log_;
  const Standing standing_;
  std::string folder_, checkpoints_;
  Progress progress_;
  obs::Tracer tracer_;
  int64_t trace_due_ns_ = now_ns() + kTraceEvery_ns;
  std::random_device random_;
  Engine engine_;
  Guards guards_{engine_, config_, log_, folder_};
  Saver saver_{checkpoints_, save_options(), config_.checkpoint.async, engine_.account(), engine_.host().stream};
  std::string snapshot_folder_;       // empty: none
  std::unique_ptr<Saver> snapshots_;  // null: none
  bool snapshot_under_way_ = false;
  TrainOutcome outcome_;
  bool settled_ = false;  // the engine has the state the run goes on from
  int64_t resumed_at_ = -1;
  int restarts_ = 0, num_skipped_ = 0;
  int64_t not_finite_since_ = 0;  // 0: the last loss was finite
  std::string kept_apart_;        // the state of a run that diverged
};

}  // namespace

TrainOutcome train(const RunConfig& given, const Log& log, const Progress::Options& progress, Standing standing,
                   const Recovery& recovery) {
  Life life{recovery};
  for (;;) {
    given.check_world(standing.size());
    RunConfig config = given;  // the run settles what it leaves open
    std::unique_ptr<Run> run;
    std::exception_ptr loss;
    try {
      run = std::make_unique<Run>(config, log, progress, standing, life);
      return run->go();
    } catch (const Error& error) {
      if (!recovery.reform || !tells_of_loss(error, recovery)) throw;
      log.warn("{}; waiting to go on in place", error.what());
      life.lost_at = now_ns();
      loss = std::current_exception();
      if (!memory_is_good(error)) {
        life.kept = {};
      } else if (run) {
        run->keep_state();
      }
    }
    run.reset();  // with everything that uses the communicator
    const std::optional<Standing> next = recovery.reform();
    if (!next) std::rethrow_exception(loss);
    standing = *next;
    ++life.num_reforms;
  }
}

}  // namespace esp::train
