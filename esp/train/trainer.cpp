#include "esp/train/trainer.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/exit_code.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/ckpt/steps.h"
#include "esp/device/gpu.h"
#include "esp/model/counts.h"
#include "esp/obs/file.h"
#include "esp/train/checkpoint_manager.h"
#include "esp/train/collective_spans.h"
#include "esp/train/gather_texts.h"
#include "esp/train/machine_peak.h"
#include "esp/train/preflight.h"
#include "esp/train/run_changes.h"
#include "esp/train/run_folder.h"
#include "esp/train/run_monitor.h"
#include "esp/train/run_progress.h"
#include "esp/train/run_reporter.h"
#include "esp/train/snapshot.h"
#include "esp/train/stop_signals.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

constexpr int64_t kTraceEvery_ns = 3'000'000'000;
constexpr size_t kMaxSummaryBytes = size_t{1} << 20;
constexpr int64_t kTailBytes = 1 << 16, kMaxLogBytes = int64_t{1} << 30;
constexpr char kRefusedPrefix = '!';      // rank 0 broadcasts this prefix and an error message instead of a path
constexpr char kAlreadyDonePrefix = '.';  // rank 0 broadcasts this prefix if the run is already complete

double seconds_since(int64_t begun_ns) {
  return static_cast<double>(now_ns() - begun_ns) * 1e-9;
}

// State that outlives a Run object: it is kept when ranks restart in place after a rank failure.
struct Session {
  const RecoveryOptions& recovery;
  MachinePeak& machine;
  const StopSignals signals = {};
  const int64_t started_ns = now_ns();
  HostReplica replica = {};
  std::optional<RunLock> lock = {};          // rank 0 only
  std::optional<FolderHandle> folder = {};   // the run folder, kept through all recoveries
  std::optional<RunProgress> progress = {};  // rank 0 only
  RunChanges changes = {};                   // rank 0 only; empty once reported
  int num_in_place_restarts = 0;
  int64_t lost_at_ns = 0;
  int64_t steps_reached = 0;  // highest step that this rank made before the rank failure
  StepReport last_step = {};  // report of the last step before the rank failure; may be incomplete
};

class Run {
 public:
  Run(RunConfig& config, const Log& log, const Progress::Options& options, const JobContext& job, Session& session)
      : session_(session),
        config_(config),
        log_(log),
        job_(job),
        folder_(run_folder_of(config)),
        progress_(completed(options, config, job.size())),
        tracer_(job.rank()),
        engine_(acquire_folder(config, folder_, job, session, log), log, job,
                config.log.trace ? tracer_.add_row("compute") : nullptr) {}

  TrainOutcome run() {
    checkpoints_.prepare();
    resume();
    if (outcome_.already_done) return outcome_;
    state_loaded_ = true;
    if (first()) write_run_file();
    RunReporter reports(folder_, config_, engine_, progress_, log_);
    log_run_header();
    const double peak =
        job_peak_flops(job_, storage_type(config_.train.precision), engine_.context().stream, session_.machine);
    // FLOPs are counted for the whole job, because the peak is that of the whole job.
    const auto tokens = static_cast<double>(engine_.tokens_per_step());
    const double flops = engine_.model().flops_per_token(config_.model.seq_len) * tokens;
    const double again = recomputed_fraction() * tokens *
                         model::recomputed_flops_per_token(engine_.model().config(), config_.model.seq_len,
                                                           parse_recompute(config_.train.recompute));
    finish_last_step(reports);
    while (engine_.num_steps() < config_.train.steps && outcome_.stop_reason == TrainOutcome::StopReason::done) {
      // Without this check, replicas that synchronise rarely would train on for a while after a peer was lost.
      if (peer_lost()) throw peer_loss_error(session_.recovery);
      StepReport report;
      monitor_.begin_step();
      const int64_t begun = now_ns();
      const double loss_scale = engine_.loss_scale().scale();
      StepRequest request = checkpoints_.step_request();
      request.stop = asked_to_stop();
      report.result = engine_.step(request);
      report.seconds = seconds_since(begun);
      report.step = engine_.num_steps();
      session_.folder->check();
      if (session_.progress) session_.progress->reached(report.step);
      report.flops_per_s = flops / report.seconds;
      report.mfu = peak > 0 ? report.flops_per_s / peak : 0;
      report.hfu = report.mfu * (1 + again / flops);
      report.rank_stats = reports.rank_stats();
      session_.last_step = report;
      monitor_.end_step(report.result, report.seconds);
      checkpoints_.end_step(report.result, loss_scale);
      for (const std::string& line : report.result.notes) note(line);
      const bool should_abort = abort_if_diverged();
      const bool last = report.step == config_.train.steps || report.result.decision.stop || should_abort;
      if (report.result.decision.stop) outcome_.stop_reason = asked_to_stop_by();
      if (should_abort) outcome_.stop_reason = TrainOutcome::StopReason::failed;
      finish_step(report, reports, last,
                  last && outcome_.stop_reason != TrainOutcome::StopReason::signal && !should_abort);
      if (config_.log.trace && !last) reports.files().attempt("trace", [&] { write_live_trace(); });
      if (!last) checkpoints_.save_if_due(report.result, [&] { reports.traffic().pause(); });
      reports.traffic().resume();
    }
    if (engine_.num_steps() >= config_.train.steps) outcome_.stop_reason = TrainOutcome::StopReason::done;
    reports.traffic().pause();
    session_.folder->check();
    if (engine_.num_steps() > resumed_at_ && config_.checkpoint.at_end) checkpoints_.save_last();
    if (std::string written = checkpoints_.finish(); !written.empty()) outcome_.checkpoint = written;
    session_.folder->check();
    reports.finish(seconds_since(session_.started_ns), restarts_, peak, checkpoints_.summary());
    outcome_.final_loss = reports.final_loss();
    if (config_.log.trace) write_traces(reports.files());
    outcome_.folder = folder_;
    outcome_.steps = engine_.num_steps();
    fail_if_diverged();
    return outcome_;
  }

  // Call it after a rank failure, on a rank that survives. Saves its state for the restart in place. If the engine's
  // state was not loaded yet, the previously saved replica is kept.
  void save_replica_state() {
    session_.steps_reached = std::max(session_.steps_reached, engine_.num_steps());
    if (state_loaded_ && replicas_are_full(engine_)) save_replica(engine_, restarts_, session_.replica);
  }

 private:
  static Progress::Options completed(Progress::Options options, const RunConfig& config, int num_ranks) {
    options.steps = config.train.steps;
    options.num_ranks = num_ranks;
    options.method = config.sync.method;
    if (config.sync.compress != "none") options.method += " " + config.sync.compress;
    if (config.sync.feedback != "none") options.method += " + " + config.sync.feedback;
    return options;
  }
  // Acquires the run folder. Collective. CollectiveError on all ranks if another run uses the folder, or if the
  // previous run in it had another run file or other data.
  static RunConfig& acquire_folder(RunConfig& config, const std::string& folder, const JobContext& job,
                                   Session& session, const Log& log) {
    std::string refusal;
    session.folder ? session.folder->check() : make_run_folder(folder);
    try {
      if (job.rank() == 0 && !session.lock) session.lock.emplace(folder, log);
    } catch (const UsageError& error) {
      refusal = error.what();
    } catch (const IoError& error) {
      throw IoError(fmt::format("run folder {}: {}. Set run.dir or --run-dir to another folder", folder, error.what()));
    }
    int64_t code = static_cast<int64_t>(ExitCode::usage);
    try {
      if (job.rank() == 0 && refusal.empty()) session.changes = check_changes(config, session.recovery.accept_changes);
    } catch (const Error& error) {
      refusal = error.what();
      code = static_cast<int64_t>(error.exit_code());
    }
    refusal = broadcast_text(job.ranks, refusal);
    if (refusal.empty()) {
      if (!session.folder) session.folder.emplace(folder);
      if (!session.progress && job.rank() == 0) session.progress.emplace(session.recovery.snapshot_folder);
      return config;
    }
    if (job.ranks) job.ranks->broadcast(&code, 1, DType::i64, 0);
    throw CollectiveError(static_cast<ExitCode>(code), refusal);
  }

  // Completes a step: evaluates if due, and writes the log line.
  void finish_step(StepReport& report, RunReporter& reports, bool last, bool evaluates) {
    evaluates = evaluates || (config_.train.eval_every > 0 && report.step % config_.train.eval_every == 0);
    const bool logged = last || evaluates || report.step == 1 || report.step % config_.log.every == 0;
    if (logged) reports.traffic().pause();
    if (evaluates) {
      monitor_.begin(comm::Phase::evaluation);
      if (const double loss = engine_.evaluate(config_.train.eval_batches); !std::isnan(loss)) report.val_loss = loss;
    }
    for (const std::string& line : engine_.strategy().take_notes()) note(line);
    if (sync::DivergentReplicas* divergent = engine_.strategy().divergent_replicas())
      report.replica_metrics = divergent->take_metrics();
    reports.step(report, logged);
  }

  // Collective. After a rank failure between a step and its log line, the line is missing, and an evaluation is
  // incomplete. If the run resumes from the memory of ranks that made this step, all ranks complete the step again,
  // with the statistics of one of these ranks. Only the last step can lack its line, because a further step would have
  // needed every rank.
  void finish_last_step(RunReporter& reports) {
    const int64_t step = engine_.num_steps();
    if (from_replica_) {
      comm::Communicator& ranks = *job_.ranks;
      int64_t written = first() ? reports.metrics()->last_step() : 0;
      ranks.broadcast(&written, 1, DType::i64, 0);
      std::vector<int64_t> made(static_cast<size_t>(ranks.size()));
      ranks.all_gather(&session_.last_step.step, made.data(), 1, DType::i64);
      const auto source = std::find(made.begin(), made.end(), step);
      if (written < step && source != made.end()) {
        session_.last_step = broadcast_report(session_.last_step, static_cast<int>(source - made.begin()));
        StepReport report = session_.last_step;
        const bool last = step == config_.train.steps;
        finish_step(report, reports, last, last);
        reports.traffic().resume();
        return;
      }
    }
    if (first()) reports.metrics()->report_gap(step, config_.log.every);
  }

  StepReport broadcast_report(const StepReport& mine, int source) {
    const StepResult& r = mine.result;
    double words[] = {r.loss,
                      r.grad_norm,
                      r.lr,
                      static_cast<double>(r.tokens),
                      r.skipped ? 1.0 : 0.0,
                      r.exposed_ms,
                      static_cast<double>(r.slowest_rank),
                      r.waited_ms,
                      mine.seconds,
                      mine.flops_per_s,
                      mine.mfu,
                      mine.hfu,
                      static_cast<double>(mine.rank_stats.memory_bytes),
                      mine.rank_stats.bytes_sent,
                      mine.rank_stats.most_bytes_sent};
    job_.ranks->broadcast(words, std::size(words), DType::f64, source);
    StepReport report;
    report.step = engine_.num_steps();
    report.recovered = true;
    size_t at = 0;
    const auto next = [&] { return words[at++]; };
    report.result.loss = next();
    report.result.grad_norm = next();
    report.result.lr = next();
    report.result.tokens = static_cast<int64_t>(next());
    report.result.skipped = next() != 0;
    report.result.exposed_ms = next();
    report.result.slowest_rank = static_cast<int>(next());
    report.result.waited_ms = next();
    report.seconds = next();
    report.flops_per_s = next();
    report.mfu = next();
    report.hfu = next();
    report.rank_stats.memory_bytes = static_cast<uint64_t>(next());
    report.rank_stats.bytes_sent = next();
    report.rank_stats.most_bytes_sent = next();
    return report;
  }

  // If the run file has not changed, it is not written again, so a resumed run needs no disk space for a second copy.
  void write_run_file() {
    const std::string path = folder_ + "/run.toml", text = to_toml(resolved());
    std::error_code absent;
    if (std::filesystem::file_size(path, absent) == text.size() && obs::read_whole_file(path, text.size()) == text)
      return;
    obs::write_whole_file(path, text);
  }

  // Collective. Loads the state with which this run starts or resumes.
  void resume() {
    continues_own_job_ = !broadcast_text(job_.ranks, first() && was_started_by_this_job() ? "yes" : "").empty();
    const ReplicaSource newest = restore_from_replica(engine_, session_.replica, session_.num_in_place_restarts > 0);
    from_replica_ = newest.rank >= 0;
    if (from_replica_) {
      const int before = static_cast<int>(session_.replica.restarts);
      session_.replica.bytes = {};
      return record_restart({"memory", fmt::format("memory of rank {}", newest.rank)}, newest, before);
    }
    const std::string& wish = config_.checkpoint.resume;
    std::unique_ptr<ckpt::Checkpoint> checkpoint;
    // Only rank 0 looks for a checkpoint: other ranks would look at other times and could find another one.
    std::string from = broadcast_text(job_.ranks, first() ? open_newest(checkpoint) : "");
    if (from.starts_with(kRefusedPrefix)) throw IoError(from.substr(1));
    const bool snapshot = !from.empty() && !checkpoints_.snapshot_folder().empty() &&
                          from.starts_with(checkpoints_.snapshot_folder() + "/");
    if (from.empty() && wish != "auto" && wish != "none") {
      if (ckpt::is_hf_folder(wish))
        throw UsageError(
            fmt::format("checkpoint.resume = {}: got a Hugging Face folder; expected a checkpoint. model.init = \"{}\" "
                        "starts from its parameters",
                        wish, wish));
      from = resolve_checkpoint(wish);
    }
    if (from.empty()) {
      load_initial_parameters();
      prepare_folder(from);
      report_changes();
      if (continues_own_job_) record_restart({"step_0", ""}, newest, 0);
      return;
    }
    if (!checkpoint) checkpoint = ckpt::open_checkpoint(from);
    const std::string said = restore(engine_, config_, *checkpoint);
    // A snapshot is lost with the job. So after a resume from a snapshot, a checkpoint must be written at the end even
    // if no step is made.
    if (!snapshot) {
      resumed_at_ = engine_.num_steps();
      outcome_.checkpoint = from;
    }
    prepare_folder(from);
    if (outcome_.already_done) return;
    record_restart({snapshot ? "snapshot" : "disk", from}, newest, restarts_of(*checkpoint));
    report_changes();
    if (first() && !continues()) report_differences_from(*checkpoint, from);
    if (!said.empty()) note(said);
  }

  static int restarts_of(const ckpt::Checkpoint& checkpoint) {
    return static_cast<int>(std::min<int64_t>(logged_step(checkpoint.state(), "restarts").value_or(0), INT_MAX - 1));
  }

  // True if the state in the run folder comes from this job. After a restart by the launcher, the job then resumes from
  // its own checkpoints, even if it was started with another checkpoint or with none; the checkpoints of the previous
  // run are already archived. If the job failed before it prepared its folder, the folder still has the previous run.
  // Then the job starts as the user requested.
  bool was_started_by_this_job() const {
    if (session_.num_in_place_restarts > 0 || !session_.recovery.is_restart) return session_.num_in_place_restarts > 0;
    std::error_code error;
    return session_.recovery.snapshot_folder.empty() || std::filesystem::exists(start_marker(), error);
  }
  // Marks that this job has prepared its folder; removed together with the launcher's folder.
  std::string start_marker() const { return session_.recovery.snapshot_folder + "/begun"; }
  bool continues() const { return config_.checkpoint.resume == "auto" || continues_own_job_; }

  // Collective; runs before anything is written. Decides whether the run is already complete. If this run starts from
  // scratch, archives the previous run. `from` is the checkpoint with which this run starts, or empty.
  void prepare_folder(const std::string& from) {
    const std::string said = broadcast_text(job_.ranks, first() ? prepare_folder_locally(from) : "");
    if (said.starts_with(kRefusedPrefix)) throw IoError(said.substr(1));
    if (first() && !session_.recovery.snapshot_folder.empty()) obs::write_whole_file(start_marker(), "");
    outcome_.already_done = said.starts_with(kAlreadyDonePrefix);
    outcome_.folder = folder_;
    outcome_.steps = engine_.num_steps();
    if (!outcome_.already_done && !said.empty()) note(said);
  }

  std::string prepare_folder_locally(const std::string& from) {
    std::error_code elsewhere;
    const bool ours = !from.empty() && std::filesystem::equivalent(std::filesystem::path(from).parent_path(),
                                                                   checkpoints_.folder(), elsewhere);
    if (resumed_at_ >= config_.train.steps && (!ours || has_summary())) return {kAlreadyDonePrefix};
    if (continues()) return {};
    try {
      if (const std::string& snapshots = checkpoints_.snapshot_folder(); !snapshots.empty())
        archive_run(snapshots, snapshots, -1);
      const std::string where = archive_run(folder_, checkpoints_.folder(), ours ? engine_.num_steps() : -1);
      if (where.empty()) return {};
      return ours ? fmt::format("moved the checkpoints of later steps to {}", where)
                  : fmt::format("moved the previous run from {} to {}", folder_, where);
    } catch (const IoError& error) {
      return kRefusedPrefix + std::string(error.what());
    }
  }

  // True if summary.json covers all steps of this run. False if the run failed after its last checkpoint and before its
  // summary.
  bool has_summary() const {
    try {
      const std::string path = folder_ + "/summary.json";
      const Json summary = parse_json(obs::read_whole_file(path, kMaxSummaryBytes), path);
      return summary.is_object() && logged_step(summary, "steps").value_or(0) >= resumed_at_;
    } catch (const IoError&) {
      return false;
    }
  }

  struct ResumeSource {
    const char* kind;  // written as "rung" in events.jsonl
    std::string from;  // path or rank; empty: there is nothing to resume from
  };

  // Collective. Counts the restart, and reports what the run resumes from and how many steps are lost.
  void record_restart(const ResumeSource& source, const ReplicaSource& newest, int restarts_before) {
    // [0]: steps made before the failure; [1]: restarts in events.jsonl
    int64_t counts[] = {session_.steps_reached, 0};
    if (first()) {
      if (continues())
        for_each_last_line("metrics.jsonl", kTailBytes,
                           [&](const Json& line) { counts[0] = std::max(counts[0], logged_step(line).value_or(0)); });
      for_each_last_line("events.jsonl", kMaxLogBytes, [&](const Json& line) {
        counts[1] += line.contains("event") && line["event"] == "recovered";
      });
    }
    if (job_.ranks) job_.ranks->all_reduce(counts, counts, std::size(counts), DType::i64, comm::ReduceOp::max);
    restarts_ = std::max(restarts_before, static_cast<int>(counts[1])) + 1;
    checkpoints_.set_restarts(restarts_);
    if (first()) report_restart(source, newest, std::max<int64_t>(0, counts[0] - engine_.num_steps()));
  }

  void report_restart(const ResumeSource& source, const ReplicaSource& newest, int64_t steps_lost) {
    const bool in_place = newest.num_survivors > 0;
    // After a restart of all ranks only logged steps are known, so the number of lost steps is a lower bound.
    const std::string lost = steps_lost == 0
                                 ? ""
                                 : fmt::format("; {}{} lost", in_place || config_.log.every == 1 ? "" : "at least ",
                                               format_count(steps_lost, "step"));
    const int64_t step = engine_.num_steps();
    if (in_place && session_.recovery.on_resumed) {
      const std::string_view kind = source.kind;
      session_.recovery.on_resumed(kind == "step_0"
                                       ? fmt::format("restarted at step 0: no snapshot or checkpoint{}", lost)
                                       : fmt::format("resumed at step {} from {}{}", step,
                                                     kind == "memory" ? source.from
                                                     : kind == "disk" ? "checkpoint"
                                                                      : "snapshot",
                                                     lost));
    } else if (source.from.empty()) {
      note(fmt::format("restarted at step 0: no snapshot or checkpoint{}", lost));
    } else {
      note(fmt::format("resumed from {} at step {}{}", source.from, step, lost));
    }
    Json event = {{"event", "recovered"},     {"rung", source.kind},
                  {"in_place", in_place},     {"from", source.from.empty() ? "the beginning" : source.from},
                  {"restarts", restarts_},    {"step", step},
                  {"steps_lost", steps_lost}, {"world", job_.size()}};
    if (in_place) event["newcomers"] = newest.newcomers;
    if (session_.lost_at_ns > 0) event["seconds"] = seconds_since(session_.lost_at_ns);
    append_event(log_, folder_, std::move(event));
  }

  // Calls f(line) for each complete JSON line in the last `bytes` of a log in the run folder.
  template <typename F>
  void for_each_last_line(const char* name, int64_t bytes, F&& f) {
    std::ifstream file(folder_ + "/" + name, std::ios::binary | std::ios::ate);
    if (!file) return;
    file.seekg(std::max<int64_t>(0, static_cast<int64_t>(file.tellg()) - bytes));
    for (std::string line; std::getline(file, line);) try {
        if (const Json json = parse_json(line, name); json.is_object()) f(json);
      } catch (const IoError&) {  // the first line may be incomplete, and any line may be damaged
      }
  }

  // Reports how the run file and the data have changed since the last start in this folder. Changes that the user
  // accepted are also recorded in events.jsonl.
  void report_changes() {
    const RunChanges changes = std::exchange(session_.changes, {});
    std::vector<std::string> texts;
    for (const KeyChange& one : changes.others) texts.push_back(one.text());
    if (!texts.empty()) note(fmt::format("changed since the last start in this folder: {}", fmt::join(texts, ", ")));
    if (!changes.schedule.empty()) note(changes.schedule);
    if (changes.result.empty() && changes.files.empty()) return;
    Json event = {{"event", "run_file_changed"}, {"step", engine_.num_steps()}, {"changes", Json::array()}};
    texts.clear();
    for (const auto* some : {&changes.result, &changes.files})
      for (const KeyChange& one : *some) {
        texts.push_back(one.text());
        event["changes"].push_back({{"key", one.key}, {"before", one.before}, {"now", one.now}});
      }
    log_.warn("continuing from step {} with a changed run file or changed data: {}", engine_.num_steps(),
              fmt::join(texts, ", "));
    append_event(log_, folder_, std::move(event));
  }

  // With --resume PATH: reports how this run differs from the run that wrote the checkpoint.
  void report_differences_from(const ckpt::Checkpoint& checkpoint, const std::string& from) {
    const std::optional<RunConfig> origin = checkpoint_run_config(checkpoint.state(), from);
    if (!origin) return;
    std::vector<std::string> texts;
    for (const KeyChange& one : diff_run_configs(*origin, config_).result) texts.push_back(one.text());
    if (!texts.empty()) note(fmt::format("settings that differ from {}: {}", from, fmt::join(texts, ", ")));
  }

  // Opens the newest undamaged checkpoint and returns its path. Returns empty if there is no checkpoint, and an error
  // message after kRefusedPrefix if all are damaged.
  std::string open_newest(std::unique_ptr<ckpt::Checkpoint>& opened) {
    try {
      std::vector<std::string> skipped;
      auto origin = continues() ? find_resume_point(checkpoints_.snapshot_folder(), checkpoints_.folder(), skipped)
                                : std::nullopt;
      for (const std::string& one : skipped) log_.warn("skipped checkpoint {}", one);
      if (!origin) return {};
      opened = std::move(origin->found.checkpoint);
      return origin->found.path;
    } catch (const IoError& error) {
      return kRefusedPrefix + std::string(error.what());
    }
  }

  void load_initial_parameters() {
    const std::string& init = config_.model.init;
    if (init.empty()) return;
    std::vector<std::string> left_out;
    std::vector<std::string> fresh = init_from_pretrained(engine_, config_, init, &left_out);
    if (engine_.mesh().shape().pp > 1) fresh = gather_unique(fresh);
    note(fmt::format("parameters from {}{}", init,
                     fresh.empty() ? "" : fmt::format("; newly initialised: {}", fmt::join(fresh, ", "))));
    if (!left_out.empty() && first())
      log_.warn("{}: ignored {} tensors that a {} model does not use: {}", init, left_out.size(), config_.model.arch,
                fmt::join(left_out, ", "));
  }

  // Returns the distinct names of all ranks. Collective. Needed because rank 0 logs the names, but a new head is on the
  // last stage.
  std::vector<std::string> gather_unique(const std::vector<std::string>& mine) {
    std::vector<std::string> all;
    for (const std::string& text : gather_texts(job_.ranks, Json(mine).dump()))
      for (const std::string& name : Json::parse(text).get<std::vector<std::string>>())
        if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    return all;
  }

  // The configuration with the number of replicas filled in where the run file has dp = 0.
  RunConfig resolved() const {
    RunConfig config = config_;
    config.parallel.dp = engine_.mesh().shape().dp;
    // A later run in this folder does not inherit checkpoint.resume.
    config.checkpoint.resume = CheckpointSection().resume;
    return config;
  }

  void log_run_header() {
    const parallel::MeshShape& mesh = engine_.mesh().shape();
    const int64_t micro = config_.train.global_batch / mesh.dp / config_.train.micro_batch;
    std::string method = config_.sync.method;
    if (config_.sync.compress != "none") method += " compress=" + config_.sync.compress;
    if (config_.sync.feedback != "none") method += " feedback=" + config_.sync.feedback;
    const std::string ranks = fmt::format("{} ({}, {}) of ", format_count(job_.size(), "rank"), method,
                                          layout_of(config_, job_.size()).text());
    note(fmt::format("{}: {} with {} parameters, {} on {}{}; {} of {} × {} ({} micro-batch{} of {})", config_.run.name,
                     config_.model.preset.empty() ? config_.model.arch : config_.model.preset, engine_.num_parameters(),
                     config_.train.precision, ranks, format_count(engine_.context().stream.num_threads(), "thread"),
                     format_count(config_.train.steps, "step"), format_count(config_.train.global_batch, "sequence"),
                     format_count(config_.model.seq_len, "token"), micro, micro == 1 ? "" : "es",
                     config_.train.micro_batch));
    if (config_.train.warmup > config_.train.steps)
      note(fmt::format("train.warmup = {}: longer than the run; clamped to train.steps = {}", config_.train.warmup,
                       config_.train.steps));
    if (config_.train.decay_steps > config_.train.steps)
      note(fmt::format("train.decay_steps = {}: longer than the run; clamped to train.steps = {}",
                       config_.train.decay_steps, config_.train.steps));
  }

  bool first() const { return job_.rank() == 0; }
  void note(const std::string& line) {
    if (first()) progress_.note(line);
  }

  // True if the run's time limit has passed. It is enough if one rank requests a stop: the exchange at the end of the
  // step stops all ranks.
  bool out_of_time() const {
    return config_.train.max_minutes > 0 && seconds_since(session_.started_ns) > config_.train.max_minutes * 60;
  }
  bool asked_to_stop() const { return session_.signals.received() != 0 || out_of_time(); }
  TrainOutcome::StopReason asked_to_stop_by() const {
    return session_.signals.received() == 0 && out_of_time() ? TrainOutcome::StopReason::time
                                                             : TrainOutcome::StopReason::signal;
  }

  std::string live_trace() const { return fmt::format("{}/ranks/trace-{}.json", folder_, job_.rank()); }

  // Writes this rank's trace rows so far, for live viewers. The interval between writes grows with the run time, so
  // that the cost stays small.
  void write_live_trace() {
    if (now_ns() < trace_due_ns_) return;
    ckpt::make_folders(folder_ + "/ranks", 0700);
    obs::write_trace(live_trace(), tracer_.trace());
    trace_due_ns_ = now_ns() + std::max(kTraceEvery_ns, (now_ns() - session_.started_ns) / 4);
  }

  // Rank 0 writes the rows of all ranks into its file. The ranks of one host have the same clock.
  void write_traces(BestEffortFiles& files) {
    if (job_.flight) add_collective_spans(*job_.flight, tracer_);
    const std::vector<std::string> texts = gather_texts(job_.ranks, tracer_.trace().dump());
    std::error_code gone;
    std::filesystem::remove(live_trace(), gone);
    if (!first()) return;
    std::vector<Json> traces;
    for (const std::string& text : texts) traces.push_back(Json::parse(text));
    files.attempt("trace", [&] {
      obs::write_trace(folder_ + "/trace.json", obs::merge_traces(traces, std::vector<int64_t>(traces.size())));
    });
  }

  // Returns true if training has diverged and must end. Ranks in lockstep all see the same result. An asynchronous
  // worker throws instead, because the other workers would wait for it.
  bool abort_if_diverged() {
    if (!checkpoints_.health().should_abort()) return false;
    sync::AsyncWorkers* const workers = engine_.strategy().async_workers();
    if (workers && !workers->lockstep()) throw Error(kExitTraining, failure_message(checkpoints_.health().problem()));
    return true;
  }

  // Collective; runs after everything is written. If training has failed on one rank, the run fails on all.
  void fail_if_diverged() {
    const std::string problem = checkpoints_.health().problem();
    int64_t failed = problem.empty() ? 0 : 1;
    if (job_.ranks) job_.ranks->all_reduce(&failed, &failed, 1, DType::i64, comm::ReduceOp::max);
    if (failed == 0) return;
    outcome_.stop_reason = TrainOutcome::StopReason::failed;
    if (first())
      log_.error("{}", failure_message(problem.empty() ? "another rank's loss or values are not finite" : problem));
    // waits until all ranks are here: when one exits with an error, the launcher may end the others
    if (job_.ranks) job_.ranks->barrier();
  }

  std::string failure_message(const std::string& problem) const {
    return fmt::format(
        "training failed after {}: {}; {}{}. Use a lower train.lr (now {:g}) or a longer train.warmup (now {}), or "
        "check the data",
        format_count(engine_.num_steps(), "step"), problem,
        outcome_.checkpoint.empty() ? "there is no good checkpoint"
                                    : fmt::format("the last good checkpoint is {}", outcome_.checkpoint),
        checkpoints_.diverged_path().empty()
            ? ""
            : fmt::format(", the state at the end is in {}", checkpoints_.diverged_path()),
        config_.train.lr, config_.train.warmup);
  }

  // The fraction of the model's blocks that train.recompute applies to.
  double recomputed_fraction() const {
    const auto named = static_cast<double>(config_.train.recompute_layers * engine_.mesh().shape().pp);
    return named < 0 ? 1 : std::min(1.0, named / static_cast<double>(config_.model.layers));
  }

  bool peer_lost() const { return session_.recovery.peer_lost && session_.recovery.peer_lost(); }

  Session& session_;
  RunConfig& config_;
  Log log_;
  const JobContext job_;
  std::string folder_;
  Progress progress_;
  obs::Tracer tracer_;
  int64_t trace_due_ns_ = now_ns() + kTraceEvery_ns;
  Engine engine_;
  RunMonitor monitor_{engine_, config_, log_, folder_};
  CheckpointManager checkpoints_{engine_,
                                 config_,
                                 log_,
                                 monitor_,
                                 session_.recovery,
                                 *session_.folder,
                                 checkpoint_folder_of(config_),
                                 [this](const std::string& line) { note(line); }};
  TrainOutcome outcome_;
  bool continues_own_job_ = false;  // the run continues from state of the same job; equal on all ranks
  bool state_loaded_ = false;       // the engine has the state that the run starts or resumes with
  bool from_replica_ = false;       // this state came from the memory of a rank
  int64_t resumed_at_ = -1;
  int restarts_ = 0;
};

}  // namespace

TrainOutcome train(const RunConfig& given, const Log& log, const Progress::Options& progress, JobContext job,
                   const RecoveryOptions& recovery, MachinePeak machine) {
  Session session{recovery, machine};
  for (;;) {
    given.check_world(job.size());
    RunConfig config = given;  // a copy, because the engine fills in values that are left open
    std::unique_ptr<Run> run;
    std::exception_ptr loss;
    try {
      run = std::make_unique<Run>(config, log, progress, job, session);
      return run->run();
    } catch (const Error& error) {
      if (!recovery.restart_in_place || !is_peer_loss(error, recovery)) throw;
      log.warn("{}; waiting to recover in place", error.what());
      session.lost_at_ns = now_ns();
      loss = std::current_exception();
      if (!is_memory_trusted(error)) {
        session.replica = {};
      } else if (run) {
        run->save_replica_state();
      }
    }
    run.reset();  // destroys everything that uses the communicator
    const std::optional<JobContext> next = recovery.restart_in_place();
    if (!next) std::rethrow_exception(loss);
    job = *next;
    ++session.num_in_place_restarts;
  }
}

}  // namespace esp::train
