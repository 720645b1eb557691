#include "esp/train/trainer.h"

#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/kernel/peak.h"
#include "esp/obs/file.h"
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
  Run(RunConfig& config, const Log& log, const Progress::Options& options)
      : config_(config),
        log_(log),
        folder_(run_folder_of(config)),
        checkpoints_(config.checkpoint.dir.empty() ? folder_ + "/checkpoints" : config.checkpoint.dir),
        progress_(with_steps(options, config.train.steps)),
        tracer_(0),
        engine_(make_folder(config, folder_), log, config.log.trace ? tracer_.add_row("compute") : nullptr) {}

  TrainOutcome go() {
    const int restarts = resume();
    obs::write_whole_file(folder_ + "/run.toml", to_toml(config_));
    Reports reports(folder_, config_, engine_.num_steps(), progress_);
    introduce();
    const double peak = kernel::fma_peak(storage_type(config_.train.precision), engine_.context().stream);
    const double flops =
        engine_.model().flops_per_token(config_.model.seq_len) * static_cast<double>(engine_.tokens_per_step());
    while (engine_.num_steps() < config_.train.steps && outcome_.why == TrainOutcome::Why::done) {
      StepReport report;
      const int64_t begun = now_ns();
      report.result = engine_.step();
      report.seconds = seconds_since(begun);
      report.step = engine_.num_steps();
      count_skipped(report.result.skipped);
      report.flops_per_s = flops / report.seconds;
      report.mfu = peak > 0 ? report.flops_per_s / peak : 0;
      report.memory_bytes = engine_.account().use(device::MemoryTier::device).peak;
      const bool last = report.step == config_.train.steps || stopping();
      if ((last && outcome_.why != TrainOutcome::Why::signal) ||
          (config_.train.eval_every > 0 && report.step % config_.train.eval_every == 0))
        if (const double loss = engine_.evaluate(config_.train.eval_batches); !std::isnan(loss)) report.val_loss = loss;
      reports.step(report, last || report.step % config_.log.every == 0 || report.val_loss);
      outcome_.final_loss = report.result.loss;
      if (config_.checkpoint.every > 0 && report.step % config_.checkpoint.every == 0 && !last) checkpoint();
    }
    if (engine_.num_steps() >= config_.train.steps) outcome_.why = TrainOutcome::Why::done;
    if (engine_.num_steps() > resumed_at_) checkpoint();
    if (std::string written = saver_.finish(); !written.empty()) outcome_.checkpoint = written;
    reports.finish(engine_, seconds_since(started_), restarts);
    if (config_.log.trace) obs::write_trace(folder_ + "/trace.json", tracer_.trace());
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
      from = ckpt::newest_complete(checkpoints_, &skipped);
      for (const std::string& one : skipped) log_.warn("passed over incomplete checkpoint {}", one);
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
    restore(engine_, config_, *checkpoint);
    resumed_at_ = engine_.num_steps();
    outcome_.checkpoint = *from;
    restarts_ = checkpoint->state().value("restarts", 0) + 1;
    progress_.note(fmt::format("resumed from {} at step {}", *from, engine_.num_steps()));
    return restarts_;
  }

  void begin() {
    const std::string& init = config_.model.init;
    if (init.empty()) return;
    const std::vector<std::string> fresh = load_initial(engine_.model(), init, engine_.context().stream);
    engine_.optimizer().refresh_master();
    progress_.note(fmt::format("parameters from {}{}", init,
                               fresh.empty() ? "" : fmt::format("; new: {}", fmt::join(fresh, ", "))));
  }

  void introduce() {
    const int64_t micro = config_.train.global_batch / config_.train.micro_batch;
    progress_.note(fmt::format(
        "{}: {} with {} parameters, {} on {} thread(s); {} steps of {} sequences × {} tokens ({} micro-batch{} of {})",
        config_.run.name, config_.model.preset.empty() ? config_.model.arch : config_.model.preset,
        engine_.model().parameters().count(), config_.train.precision, engine_.context().stream.num_threads(),
        config_.train.steps, config_.train.global_batch, config_.model.seq_len, micro, micro == 1 ? "" : "es",
        config_.train.micro_batch));
  }

  bool stopping() {
    if (signals_.received() != 0) outcome_.why = TrainOutcome::Why::signal;
    if (config_.train.max_minutes > 0 && seconds_since(started_) > config_.train.max_minutes * 60)
      outcome_.why = TrainOutcome::Why::time;
    return outcome_.why != TrainOutcome::Why::done;
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
    options.add_files = [this](const std::string& folder) {
      if (engine_.feed().tokenizer && config_.data.tokenizer != "byte") engine_.feed().tokenizer->save(folder);
    };
    return options;
  }

  void checkpoint() {
    ckpt::Snapshot snapshot = snapshot_of(engine_, config_);
    snapshot.state["restarts"] = restarts_;
    saver_.save(std::move(snapshot));
    progress_.note(fmt::format("checkpoint {}/step-{}", checkpoints_, engine_.num_steps()));
  }

  RunConfig& config_;
  Log log_;
  const int64_t started_ = now_ns();
  std::string folder_, checkpoints_;
  Progress progress_;
  obs::Tracer tracer_;
  StopSignals signals_;
  Engine engine_;
  Saver saver_{checkpoints_, save_options(), config_.checkpoint.async, engine_.account()};
  TrainOutcome outcome_;
  int64_t resumed_at_ = -1;
  int restarts_ = 0, num_skipped_ = 0;
};

}  // namespace

TrainOutcome train(RunConfig config, const Log& log, const Progress::Options& progress) {
  config.check_world(1);
  return Run(config, log, progress).go();
}

}  // namespace esp::train
