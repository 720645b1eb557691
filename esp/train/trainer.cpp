#include "esp/train/trainer.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/kernel/peak.h"
#include "esp/obs/file.h"
#include "esp/train/collective_spans.h"
#include "esp/train/gather_texts.h"
#include "esp/train/loaded.h"
#include "esp/train/reports.h"
#include "esp/train/saver.h"
#include "esp/train/signals.h"
#include "esp/train/snapshot.h"

namespace esp::train {
namespace {

// So many steps in a row without a finite gradient are no bad batch: the run is lost.
constexpr int kMostSkippedSteps = 50;

double seconds_since(int64_t begun_ns) {
  return static_cast<double>(now_ns() - begun_ns) * 1e-9;
}

class Run {
 public:
  Run(RunConfig& config, const Log& log, const Progress::Options& options, const Standing& standing)
      : config_(config),
        log_(log),
        standing_(standing),
        folder_(run_folder_of(config)),
        checkpoints_(config.checkpoint.dir.empty() ? folder_ + "/checkpoints" : config.checkpoint.dir),
        progress_(with_steps(options, config.train.steps)),
        tracer_(standing.rank()),
        engine_(make_folder(config, folder_), log, standing, config.log.trace ? tracer_.add_row("compute") : nullptr) {}

  TrainOutcome go() {
    const int restarts = resume();
    if (first()) obs::write_whole_file(folder_ + "/run.toml", to_toml(resolved()));
    Reports reports(folder_, config_, engine_, progress_);
    introduce();
    const double peak = kernel::fma_peak(storage_type(config_.train.precision), engine_.context().stream);
    // Of one rank: figures of speed are per rank, as its peak is.
    const double flops = engine_.model().flops_per_token(config_.model.seq_len) *
                         static_cast<double>(engine_.tokens_per_step()) / standing_.size();
    while (engine_.num_steps() < config_.train.steps && outcome_.why == TrainOutcome::Why::done) {
      StepReport report;
      const int64_t begun = now_ns();
      report.result = engine_.step(asked_to_stop());
      report.seconds = seconds_since(begun);
      report.step = engine_.num_steps();
      count_skipped(report.result.skipped);
      for (const std::string& line : report.result.notes) note(line);
      report.flops_per_s = flops / report.seconds;
      report.mfu = peak > 0 ? report.flops_per_s / peak : 0;
      report.memory_bytes = engine_.account().use(device::MemoryTier::device).peak;
      const bool last = report.step == config_.train.steps || report.result.stop;
      if (report.result.stop) outcome_.why = asked_to_stop_by();
      if ((last && outcome_.why != TrainOutcome::Why::signal) ||
          (config_.train.eval_every > 0 && report.step % config_.train.eval_every == 0))
        if (const double loss = engine_.evaluate(config_.train.eval_batches); !std::isnan(loss)) report.val_loss = loss;
      for (const std::string& line : engine_.strategy().take_notes()) note(line);
      if (sync::Apart* apart = engine_.strategy().apart()) report.measures = apart->take_measures();
      reports.step(report, last || report.step % config_.log.every == 0 || report.val_loss);
      outcome_.final_loss = report.result.loss;
      if (config_.checkpoint.every > 0 && report.step % config_.checkpoint.every == 0 && !last) checkpoint();
    }
    if (engine_.num_steps() >= config_.train.steps) outcome_.why = TrainOutcome::Why::done;
    if (engine_.num_steps() > resumed_at_) checkpoint();
    if (std::string written = saver_.finish(); !written.empty()) outcome_.checkpoint = written;
    reports.finish(seconds_since(started_), restarts);
    if (config_.log.trace) write_traces();
    outcome_.folder = folder_;
    outcome_.steps = engine_.num_steps();
    return outcome_;
  }

 private:
  static Progress::Options with_steps(Progress::Options options, int64_t steps) {
    options.steps = steps;
    return options;
  }
  static RunConfig& make_folder(RunConfig& config, const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw IoError(fmt::format("run folder {}: {}", folder, error.message()));
    return config;
  }

  // Returns how often this run had been started before.
  int resume() {
    const std::string& wish = config_.checkpoint.resume;
    std::optional<std::string> from;
    if (wish == "auto") {
      std::vector<std::string> skipped;
      if (first()) from = ckpt::newest_complete(checkpoints_, &skipped);
      for (const std::string& one : skipped) log_.warn("passed over incomplete checkpoint {}", one);
      // One rank looks: two that look at different moments could see different ones.
      const std::string agreed = broadcast_text(standing_.ranks, from.value_or(""));
      from = agreed.empty() ? std::nullopt : std::optional(agreed);
    } else if (wish != "none") {
      if (ckpt::is_hf_folder(wish))
        throw UsageError(
            fmt::format("{} is no checkpoint to resume but a Hugging Face folder; model.init = \"{}\" begins "
                        "with its parameters",
                        wish, wish));
      from = checkpoint_at(wish);
    }
    if (!from) {
      begin();
      return 0;
    }
    const auto checkpoint = ckpt::open_checkpoint(*from);
    const std::string said = restore(engine_, config_, *checkpoint);
    resumed_at_ = engine_.num_steps();
    outcome_.checkpoint = *from;
    restarts_ = checkpoint->state().value("restarts", 0) + 1;
    note(fmt::format("resumed from {} at step {}", *from, engine_.num_steps()));
    if (!said.empty()) note(said);
    return restarts_;
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
    note(
        fmt::format("{}: {} with {} parameters, {} on {}{} thread(s); {} steps of {} sequences × {} tokens ({} "
                    "micro-batch{} of {})",
                    config_.run.name, config_.model.preset.empty() ? config_.model.arch : config_.model.preset,
                    engine_.num_parameters(), config_.train.precision, ranks, engine_.context().stream.num_threads(),
                    config_.train.steps, config_.train.global_batch, config_.model.seq_len, micro,
                    micro == 1 ? "" : "es", config_.train.micro_batch));
  }

  bool first() const { return standing_.rank() == 0; }
  void note(const std::string& line) {
    if (first()) progress_.note(line);
  }

  // One rank's wish is everybody's: the step carries it to the others.
  bool out_of_time() const {
    return config_.train.max_minutes > 0 && seconds_since(started_) > config_.train.max_minutes * 60;
  }
  bool asked_to_stop() const { return signals_.received() != 0 || out_of_time(); }
  TrainOutcome::Why asked_to_stop_by() const {
    return signals_.received() == 0 && out_of_time() ? TrainOutcome::Why::time : TrainOutcome::Why::signal;
  }

  // The first rank's file has everybody's rows; ranks of one host share a clock.
  void write_traces() {
    if (standing_.flight) draw_collectives(*standing_.flight, tracer_);
    const std::vector<std::string> texts = gather_texts(standing_.ranks, tracer_.trace().dump());
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

  ckpt::SaveOptions save_options() {
    ckpt::SaveOptions options;
    options.keep = static_cast<int>(config_.checkpoint.keep);
    options.rank = standing_.rank();
    options.world = standing_.size();
    options.token = broadcast_text(standing_.ranks, fmt::format("{:08x}{:08x}", random_(), random_()));
    options.add_files = [this](const std::string& folder) {
      if (engine_.feed().tokenizer && config_.data.tokenizer != "byte") engine_.feed().tokenizer->save(folder);
    };
    return options;
  }

  void checkpoint() {
    ckpt::Snapshot snapshot = snapshot_of(engine_, config_);
    snapshot.state["restarts"] = restarts_;
    saver_.save(std::move(snapshot));
    note(fmt::format("checkpoint {}/step-{}", checkpoints_, engine_.num_steps()));
  }

  RunConfig& config_;
  Log log_;
  const Standing standing_;
  const int64_t started_ = now_ns();
  std::string folder_, checkpoints_;
  Progress progress_;
  obs::Tracer tracer_;
  StopSignals signals_;
  std::random_device random_;
  Engine engine_;
  Saver saver_{checkpoints_, save_options(), config_.checkpoint.async, engine_.account()};
  TrainOutcome outcome_;
  int64_t resumed_at_ = -1;
  int restarts_ = 0, num_skipped_ = 0;
};

}  // namespace

TrainOutcome train(RunConfig config, const Log& log, const Progress::Options& progress, const Standing& standing) {
  config.check_world(standing.size());
  return Run(config, log, progress, standing).go();
}

}  // namespace esp::train
