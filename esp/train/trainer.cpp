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
#include "esp/train/collective_spans.h"
#include "esp/train/gather_texts.h"
#include "esp/train/guards.h"
#include "esp/train/loaded.h"
#include "esp/train/machine_peak.h"
#include "esp/train/preflight.h"
#include "esp/train/reports.h"
#include "esp/train/run_changes.h"
#include "esp/train/run_checkpoints.h"
#include "esp/train/run_folder.h"
#include "esp/train/run_progress.h"
#include "esp/train/signals.h"
#include "esp/train/snapshot.h"

namespace esp::train {
namespace {

constexpr int64_t kTraceEvery_ns = 3'000'000'000;
constexpr size_t kMaxSummaryBytes = size_t{1} << 20;
constexpr int64_t kTailBytes = 1 << 16, kMaxLogBytes = int64_t{1} << 30;
constexpr char kRefused = '!';      // begins what is told to all ranks instead of a path
constexpr char kNothingLeft = '.';  // the same, of a run that is done

double seconds_since(int64_t begun_ns) {
  return static_cast<double>(now_ns() - begun_ns) * 1e-9;
}

// What a run keeps while ranks are lost and meet again.
struct Life {
  const Recovery& recovery;
  MachinePeak& machine;
  const StopSignals signals = {};
  const int64_t started = now_ns();
  Replica kept = {};
  std::optional<RunLock> lock = {};          // the first rank's
  std::optional<FolderHandle> folder = {};   // the run's, the same through all recoveries
  std::optional<RunProgress> progress = {};  // the first rank's
  RunChanges changes = {};                   // the first rank's, until they are reported
  int num_reforms = 0;
  int64_t lost_at = 0;
  int64_t reached = 0;   // steps made when a rank was lost
  StepReport made = {};  // the last step, as far as it was known before ranks were lost
};

class Run {
 public:
  Run(RunConfig& config, const Log& log, const Progress::Options& options, const Standing& standing, Life& life)
      : life_(life),
        config_(config),
        log_(log),
        standing_(standing),
        folder_(run_folder_of(config)),
        progress_(completed(options, config, standing.size())),
        tracer_(standing.rank()),
        engine_(enter(config, folder_, standing, life, log), log, standing,
                config.log.trace ? tracer_.add_row("compute") : nullptr) {}

  TrainOutcome go() {
    saves_.prepare();
    resume();
    if (outcome_.nothing_left) return outcome_;
    settled_ = true;
    if (first()) write_run_file();
    Reports reports(folder_, config_, engine_, progress_, log_);
    introduce();
    const double peak =
        job_peak(standing_, storage_type(config_.train.precision), engine_.context().stream, life_.machine);
    // Figures of speed are of the whole job, as its peak is.
    const auto tokens = static_cast<double>(engine_.tokens_per_step());
    const double flops = engine_.model().flops_per_token(config_.model.seq_len) * tokens;
    const double again = recomputed_share() * tokens *
                         model::recomputed_flops_per_token(engine_.model().config(), config_.model.seq_len,
                                                           parse_recompute(config_.train.recompute));
    finish_last_step(reports);
    while (engine_.num_steps() < config_.train.steps && outcome_.why == TrainOutcome::Why::done) {
      // Copies that seldom hear of each other would go on alone for a while.
      if (peer_lost()) throw loss_told(life_.recovery);
      StepReport report;
      guards_.begin_step();
      const int64_t begun = now_ns();
      const double loss_scale = engine_.loss_scale().scale();
      StepNotice notice = saves_.notice();
      notice.stop = asked_to_stop();
      report.result = engine_.step(notice);
      report.seconds = seconds_since(begun);
      report.step = engine_.num_steps();
      life_.folder->check();
      if (life_.progress) life_.progress->reached(report.step);
      report.flops_per_s = flops / report.seconds;
      report.mfu = peak > 0 ? report.flops_per_s / peak : 0;
      report.hfu = report.mfu * (1 + again / flops);
      report.of_ranks = reports.of_ranks();
      life_.made = report;
      guards_.end_step(report.result, report.seconds);
      saves_.end_step(report.result, loss_scale);
      for (const std::string& line : report.result.notes) note(line);
      const bool hopeless = give_up_if_hopeless();
      const bool last = report.step == config_.train.steps || report.result.agreed.stop || hopeless;
      if (report.result.agreed.stop) outcome_.why = asked_to_stop_by();
      if (hopeless) outcome_.why = TrainOutcome::Why::failed;
      finish_step(report, reports, last, last && outcome_.why != TrainOutcome::Why::signal && !hopeless);
      if (config_.log.trace && !last) reports.files().attempt("trace", [&] { show_trace(); });
      if (!last) saves_.save_if_due(report.result, [&] { reports.traffic().pause(); });
      reports.traffic().resume();
    }
    if (engine_.num_steps() >= config_.train.steps) outcome_.why = TrainOutcome::Why::done;
    reports.traffic().pause();
    life_.folder->check();
    if (engine_.num_steps() > resumed_at_ && config_.checkpoint.at_end) saves_.save_last();
    if (std::string written = saves_.finish(); !written.empty()) outcome_.checkpoint = written;
    life_.folder->check();
    reports.finish(seconds_since(life_.started), restarts_, peak, saves_.summary());
    outcome_.final_loss = reports.final_loss();
    if (config_.log.trace) write_traces(reports.files());
    outcome_.folder = folder_;
    outcome_.steps = engine_.num_steps();
    fail_if_diverged();
    return outcome_;
  }

  // What the ranks can go on from, should this one live on. A state that was not yet made good keeps the one before.
  void keep_state() {
    life_.reached = std::max(life_.reached, engine_.num_steps());
    if (settled_ && copies_are_whole(engine_)) take_replica(engine_, restarts_, life_.kept);
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
  // Collective: all ranks learn that another run holds the folder, or that the run in it was made with another run
  // file or other data.
  static RunConfig& enter(RunConfig& config, const std::string& folder, const Standing& standing, Life& life,
                          const Log& log) {
    std::string refusal;
    life.folder ? life.folder->check() : make_run_folder(folder);
    try {
      if (standing.rank() == 0 && !life.lock) life.lock.emplace(folder, log);
    } catch (const UsageError& error) {
      refusal = error.what();
    } catch (const IoError& error) {
      throw IoError(fmt::format("run folder {}: {}; run.dir or --run-dir names another", folder, error.what()));
    }
    int64_t code = static_cast<int64_t>(ExitCode::usage);
    try {
      if (standing.rank() == 0 && refusal.empty()) life.changes = check_changes(config, life.recovery.accept_changes);
    } catch (const Error& error) {
      refusal = error.what();
      code = static_cast<int64_t>(error.exit_code());
    }
    refusal = broadcast_text(standing.ranks, refusal);
    if (refusal.empty()) {
      if (!life.folder) life.folder.emplace(folder);
      if (!life.progress && standing.rank() == 0) life.progress.emplace(life.recovery.snapshots);
      return config;
    }
    if (standing.ranks) standing.ranks->broadcast(&code, 1, DType::i64, 0);
    throw CollectiveRefusal(static_cast<ExitCode>(code), refusal);
  }

  // After a step: what is evaluated, and its line.
  void finish_step(StepReport& report, Reports& reports, bool last, bool evaluates) {
    evaluates = evaluates || (config_.train.eval_every > 0 && report.step % config_.train.eval_every == 0);
    const bool logged = last || evaluates || report.step == 1 || report.step % config_.log.every == 0;
    if (logged) reports.traffic().pause();
    if (evaluates) {
      guards_.begin(comm::Phase::evaluation);
      if (const double loss = engine_.evaluate(config_.train.eval_batches); !std::isnan(loss)) report.val_loss = loss;
    }
    for (const std::string& line : engine_.strategy().take_notes()) note(line);
    if (sync::DivergentReplicas* divergent = engine_.strategy().divergent_replicas())
      report.measures = divergent->take_metrics();
    reports.step(report, logged);
  }

  // Collective. A rank that is killed between a step and its line takes the line along, and an evaluation under way.
  // Where the run goes on from the memory of the others, which have made the step, they finish it once more: its
  // figures come from one of them. No other step can be without a line: the next one needs every rank.
  void finish_last_step(Reports& reports) {
    const int64_t step = engine_.num_steps();
    if (healed_) {
      comm::Communicator& ranks = *standing_.ranks;
      int64_t written = first() ? reports.metrics()->last_step() : 0;
      ranks.broadcast(&written, 1, DType::i64, 0);
      std::vector<int64_t> made(static_cast<size_t>(ranks.size()));
      ranks.all_gather(&life_.made.step, made.data(), 1, DType::i64);
      const auto source = std::find(made.begin(), made.end(), step);
      if (written < step && source != made.end()) {
        life_.made = shared(life_.made, static_cast<int>(source - made.begin()));
        StepReport report = life_.made;
        const bool last = step == config_.train.steps;
        finish_step(report, reports, last, last);
        reports.traffic().resume();
        return;
      }
    }
    if (first()) reports.metrics()->report_gap(step, config_.log.every);
  }

  StepReport shared(const StepReport& mine, int source) {
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
                      static_cast<double>(mine.of_ranks.memory_bytes),
                      mine.of_ranks.bytes_sent,
                      mine.of_ranks.most_bytes_sent};
    standing_.ranks->broadcast(words, std::size(words), DType::f64, source);
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
    report.of_ranks.memory_bytes = static_cast<uint64_t>(next());
    report.of_ranks.bytes_sent = next();
    report.of_ranks.most_bytes_sent = next();
    return report;
  }

  // A run that goes on with the same one needs no room for a second.
  void write_run_file() {
    const std::string path = folder_ + "/run.toml", text = to_toml(resolved());
    std::error_code absent;
    if (std::filesystem::file_size(path, absent) == text.size() && obs::read_whole_file(path, text.size()) == text)
      return;
    obs::write_whole_file(path, text);
  }

  // Collective: the state this run begins or goes on with.
  void resume() {
    goes_on_by_itself_ = !broadcast_text(standing_.ranks, first() && was_begun_by_this_job() ? "yes" : "").empty();
    const Healed healed = heal(engine_, life_.kept, life_.num_reforms > 0);
    healed_ = healed.source >= 0;
    if (healed_) {
      const int before = static_cast<int>(life_.kept.restarts);
      life_.kept.bytes = {};
      return restarted({"memory", fmt::format("memory of rank {}", healed.source)}, healed, before);
    }
    const std::string& wish = config_.checkpoint.resume;
    std::unique_ptr<ckpt::Checkpoint> checkpoint;
    // One rank looks: two that look at different moments could see different ones.
    std::string from = broadcast_text(standing_.ranks, first() ? newest(checkpoint) : "");
    if (from.starts_with(kRefused)) throw IoError(from.substr(1));
    const bool snapshot =
        !from.empty() && !saves_.snapshot_folder().empty() && from.starts_with(saves_.snapshot_folder() + "/");
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
      report_changes();
      if (goes_on_by_itself_) restarted({"anew", ""}, healed, 0);
      return;
    }
    if (!checkpoint) checkpoint = ckpt::open_checkpoint(from);
    const std::string said = restore(engine_, config_, *checkpoint);
    // A snapshot goes with the job: at the end there is a checkpoint, whatever it began with.
    if (!snapshot) {
      resumed_at_ = engine_.num_steps();
      outcome_.checkpoint = from;
    }
    settle_folder(from);
    if (outcome_.nothing_left) return;
    restarted({snapshot ? "snapshot" : "disk", from}, healed, restarts_of(*checkpoint));
    report_changes();
    if (first() && !goes_on()) report_origin(*checkpoint, from);
    if (!said.empty()) note(said);
  }

  static int restarts_of(const ckpt::Checkpoint& checkpoint) {
    return static_cast<int>(std::min<int64_t>(logged_step(checkpoint.state(), "restarts").value_or(0), INT_MAX - 1));
  }

  // A job that a launcher starts once more goes on from its own checkpoints, also when it was to begin with another
  // one, or with none: the former run's are not among them any more.
  // One that was lost before it had settled its folder left the former run's there: it begins as it was asked to.
  bool was_begun_by_this_job() const {
    if (life_.num_reforms > 0 || !life_.recovery.again) return life_.num_reforms > 0;
    std::error_code error;
    return life_.recovery.snapshots.empty() || std::filesystem::exists(begun_marker(), error);
  }
  std::string begun_marker() const { return life_.recovery.snapshots + "/begun"; }  // goes with the launcher
  bool goes_on() const { return config_.checkpoint.resume == "auto" || goes_on_by_itself_; }

  // Collective, before anything is written: whether there is anything to do, and the folder cleared of the run before
  // where this one begins anew. `from`: what it begins with, or nothing.
  void settle_folder(const std::string& from) {
    const std::string said = broadcast_text(standing_.ranks, first() ? settle(from) : "");
    if (said.starts_with(kRefused)) throw IoError(said.substr(1));
    if (first() && !life_.recovery.snapshots.empty()) obs::write_whole_file(begun_marker(), "");
    outcome_.nothing_left = said.starts_with(kNothingLeft);
    outcome_.folder = folder_;
    outcome_.steps = engine_.num_steps();
    if (!outcome_.nothing_left && !said.empty()) note(said);
  }

  std::string settle(const std::string& from) {
    std::error_code elsewhere;
    const bool ours = !from.empty() && std::filesystem::equivalent(std::filesystem::path(from).parent_path(),
                                                                   saves_.folder(), elsewhere);
    if (resumed_at_ >= config_.train.steps && (!ours || summed_up())) return {kNothingLeft};
    if (goes_on()) return {};
    try {
      if (const std::string& snapshots = saves_.snapshot_folder(); !snapshots.empty())
        set_aside(snapshots, snapshots, -1);
      const std::string where = set_aside(folder_, saves_.folder(), ours ? engine_.num_steps() : -1);
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
      const std::string path = folder_ + "/summary.json";
      const Json summary = parse_json(obs::read_whole_file(path, kMaxSummaryBytes), path);
      return summary.is_object() && logged_step(summary, "steps").value_or(0) >= resumed_at_;
    } catch (const IoError&) {
      return false;
    }
  }

  struct Source {
    const char* rung;  // in events.jsonl
    std::string from;  // empty: there was nothing to resume
  };

  // Collective. Counts the restart, and tells what the run resumes from and how many steps were lost.
  void restarted(const Source& source, const Healed& healed, int restarts_before) {
    int64_t counts[] = {life_.reached, 0};  // steps made before, restarts recorded
    if (first()) {
      if (goes_on())
        for_each_last_line("metrics.jsonl", kTailBytes,
                           [&](const Json& line) { counts[0] = std::max(counts[0], logged_step(line).value_or(0)); });
      for_each_last_line("events.jsonl", kMaxLogBytes, [&](const Json& line) {
        counts[1] += line.contains("event") && line["event"] == "recovered";
      });
    }
    if (standing_.ranks)
      standing_.ranks->all_reduce(counts, counts, std::size(counts), DType::i64, comm::ReduceOp::max);
    restarts_ = std::max(restarts_before, static_cast<int>(counts[1])) + 1;
    saves_.set_restarts(restarts_);
    if (first()) tell_restart(source, healed, std::max<int64_t>(0, counts[0] - engine_.num_steps()));
  }

  void tell_restart(const Source& source, const Healed& healed, int64_t steps_lost) {
    const bool in_place = healed.num_survivors > 0;
    // Steps between lines of the log are known to those alone that made them.
    const std::string lost = steps_lost == 0
                                 ? ""
                                 : fmt::format("; {}{} lost", in_place || config_.log.every == 1 ? "" : "at least ",
                                               counted(steps_lost, "step"));
    const int64_t step = engine_.num_steps();
    if (in_place && life_.recovery.resumed) {
      const std::string_view rung = source.rung;
      life_.recovery.resumed(rung == "anew"
                                 ? fmt::format("started again at step 0, there was no snapshot or checkpoint{}", lost)
                                 : fmt::format("resumed at step {} from {}{}", step,
                                               rung == "memory" ? source.from
                                               : rung == "disk" ? "checkpoint"
                                                                : "snapshot",
                                               lost));
    } else if (source.from.empty()) {
      note(fmt::format("started again at step 0, there was no snapshot or checkpoint{}", lost));
    } else {
      note(fmt::format("resumed from {} at step {}{}", source.from, step, lost));
    }
    Json event = {{"event", "recovered"},     {"rung", source.rung},
                  {"in_place", in_place},     {"from", source.from.empty() ? "the beginning" : source.from},
                  {"restarts", restarts_},    {"step", step},
                  {"steps_lost", steps_lost}, {"world", standing_.size()}};
    if (in_place) event["newcomers"] = healed.newcomers;
    if (life_.lost_at > 0) event["seconds"] = seconds_since(life_.lost_at);
    append_event(log_, folder_, std::move(event));
  }

  // f(line) for each whole line within the last bytes of a log of the run folder.
  template <typename F>
  void for_each_last_line(const char* name, int64_t bytes, F&& f) {
    std::ifstream file(folder_ + "/" + name, std::ios::binary | std::ios::ate);
    if (!file) return;
    file.seekg(std::max<int64_t>(0, static_cast<int64_t>(file.tellg()) - bytes));
    for (std::string line; std::getline(file, line);) try {
        if (const Json json = parse_json(line, name); json.is_object()) f(json);
      } catch (const IoError&) {  // cut at its beginning, or damaged
      }
  }

  // Of the run file since this folder's run was started or resumed last. Accepted ones are recorded in events.jsonl.
  void report_changes() {
    const RunChanges changes = std::exchange(life_.changes, {});
    std::vector<std::string> texts;
    for (const KeyChange& one : changes.others) texts.push_back(one.text());
    if (!texts.empty()) note(fmt::format("other than before in this folder: {}", fmt::join(texts, ", ")));
    if (!changes.schedule.empty()) note(changes.schedule);
    if (changes.result.empty() && changes.files.empty()) return;
    Json event = {{"event", "run_file_changed"}, {"step", engine_.num_steps()}, {"changes", Json::array()}};
    texts.clear();
    for (const auto* some : {&changes.result, &changes.files})
      for (const KeyChange& one : *some) {
        texts.push_back(one.text());
        event["changes"].push_back({{"key", one.key}, {"before", one.before}, {"now", one.now}});
      }
    log_.warn("from step {} on with another run file or other data: {}", engine_.num_steps(), fmt::join(texts, ", "));
    append_event(log_, folder_, std::move(event));
  }

  // --resume PATH: how the run that made the checkpoint differs from this one.
  void report_origin(const ckpt::Checkpoint& checkpoint, const std::string& from) {
    const std::optional<RunConfig> origin = run_of_checkpoint(checkpoint.state(), from);
    if (!origin) return;
    std::vector<std::string> texts;
    for (const KeyChange& one : changes_between(*origin, config_).result) texts.push_back(one.text());
    if (!texts.empty()) note(fmt::format("other than in {}: {}", from, fmt::join(texts, ", ")));
  }

  // The path of the newest checkpoint that is as it was written, opened; nothing; or what is wrong with all of them.
  std::string newest(std::unique_ptr<ckpt::Checkpoint>& opened) {
    try {
      std::vector<std::string> skipped;
      auto origin = goes_on() ? newest_origin(saves_.snapshot_folder(), saves_.folder(), skipped) : std::nullopt;
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
    std::vector<std::string> left_out;
    std::vector<std::string> fresh = begin_with(engine_, config_, init, &left_out);
    if (engine_.mesh().shape().pp > 1) fresh = told_by_any(fresh);
    note(fmt::format("parameters from {}{}", init,
                     fresh.empty() ? "" : fmt::format("; new: {}", fmt::join(fresh, ", "))));
    if (!left_out.empty() && first())
      log_.warn("{}: left out {} tensors unknown to this {}: {}", init, left_out.size(), config_.model.arch,
                fmt::join(left_out, ", "));
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
    config.checkpoint.resume = CheckpointSection().resume;  // how this run began is no wish of the next
    return config;
  }

  void introduce() {
    const parallel::MeshShape& mesh = engine_.mesh().shape();
    const int64_t micro = config_.train.global_batch / mesh.dp / config_.train.micro_batch;
    std::string method = config_.sync.method;
    if (config_.sync.compress != "none") method += " compress=" + config_.sync.compress;
    if (config_.sync.feedback != "none") method += " feedback=" + config_.sync.feedback;
    const std::string ranks = fmt::format("{} ({}, {}) of ", counted(standing_.size(), "rank"), method,
                                          layout_of(config_, standing_.size()).text());
    note(fmt::format("{}: {} with {} parameters, {} on {}{}; {} of {} × {} ({} micro-batch{} of {})", config_.run.name,
                     config_.model.preset.empty() ? config_.model.arch : config_.model.preset, engine_.num_parameters(),
                     config_.train.precision, ranks, counted(engine_.context().stream.num_threads(), "thread"),
                     counted(config_.train.steps, "step"), counted(config_.train.global_batch, "sequence"),
                     counted(config_.model.seq_len, "token"), micro, micro == 1 ? "" : "es",
                     config_.train.micro_batch));
    if (config_.train.warmup > config_.train.steps)
      note(fmt::format("train.warmup = {}: longer than the run; clamped to train.steps = {}", config_.train.warmup,
                       config_.train.steps));
    if (config_.train.decay_steps > config_.train.steps)
      note(fmt::format("train.decay_steps = {}: longer than the run; clamped to train.steps = {}",
                       config_.train.decay_steps, config_.train.steps));
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
  void write_traces(OptionalFiles& files) {
    if (standing_.flight) draw_collectives(*standing_.flight, tracer_);
    const std::vector<std::string> texts = gather_texts(standing_.ranks, tracer_.trace().dump());
    std::error_code gone;
    std::filesystem::remove(live_trace(), gone);
    if (!first()) return;
    std::vector<Json> traces;
    for (const std::string& text : texts) traces.push_back(Json::parse(text));
    files.attempt("trace", [&] {
      obs::write_trace(folder_ + "/trace.json", obs::merge_traces(traces, std::vector<int64_t>(traces.size())));
    });
  }

  // In lockstep all ranks see the same. Elsewhere one that left by itself would be waited for: it ends the run.
  bool give_up_if_hopeless() {
    if (!saves_.health().hopeless()) return false;
    sync::AsyncWorkers* const workers = engine_.strategy().async_workers();
    if (workers && !workers->lockstep()) throw Error(kExitTraining, failure_words(saves_.health().problem()));
    return true;
  }

  // Collective, when everything is written: a failure on one rank is the run's.
  void fail_if_diverged() {
    const std::string problem = saves_.health().problem();
    int64_t failed = problem.empty() ? 0 : 1;
    if (standing_.ranks) standing_.ranks->all_reduce(&failed, &failed, 1, DType::i64, comm::ReduceOp::max);
    if (failed == 0) return;
    outcome_.why = TrainOutcome::Why::failed;
    if (first())
      log_.error("{}", failure_words(problem.empty() ? "another rank's loss or values are not finite" : problem));
    if (standing_.ranks) standing_.ranks->barrier();  // a rank that ends with an error may end the others
  }

  std::string failure_words(const std::string& problem) const {
    return fmt::format(
        "training failed after {}: {}; {}{}. Use a lower train.lr (now {:g}) or a longer train.warmup (now {}), or "
        "check the data",
        counted(engine_.num_steps(), "step"), problem,
        outcome_.checkpoint.empty() ? "there is no good checkpoint"
                                    : fmt::format("the last good checkpoint is {}", outcome_.checkpoint),
        saves_.diverged_path().empty() ? "" : fmt::format(", the state at the end is in {}", saves_.diverged_path()),
        config_.train.lr, config_.train.warmup);
  }

  // Of the model's blocks, the part that is recomputed where any is.
  double recomputed_share() const {
    const auto named = static_cast<double>(config_.train.recompute_layers * engine_.mesh().shape().pp);
    return named < 0 ? 1 : std::min(1.0, named / static_cast<double>(config_.model.layers));
  }

  bool peer_lost() const { return life_.recovery.peer_lost && life_.recovery.peer_lost(); }

  Life& life_;
  RunConfig& config_;
  Log log_;
  const Standing standing_;
  std::string folder_;
  Progress progress_;
  obs::Tracer tracer_;
  int64_t trace_due_ns_ = now_ns() + kTraceEvery_ns;
  Engine engine_;
  Guards guards_{engine_, config_, log_, folder_};
  RunCheckpoints saves_{engine_,
                        config_,
                        log_,
                        guards_,
                        life_.recovery,
                        *life_.folder,
                        checkpoint_folder_of(config_),
                        [this](const std::string& line) { note(line); }};
  TrainOutcome outcome_;
  bool goes_on_by_itself_ = false;  // all ranks know it alike
  bool settled_ = false;            // the engine has the state the run goes on from
  bool healed_ = false;             // which is that of a rank's memory
  int64_t resumed_at_ = -1;
  int restarts_ = 0;
};

}  // namespace

TrainOutcome train(const RunConfig& given, const Log& log, const Progress::Options& progress, Standing standing,
                   const Recovery& recovery, MachinePeak machine) {
  Life life{recovery, machine};
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
