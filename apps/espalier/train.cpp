// espalier train RUN.toml: trains on this machine.
#include <fmt/format.h>
#include <unistd.h>

#include "apps/espalier/command.h"
#include "apps/espalier/terminal.h"
#include "esp/base/error.h"
#include "esp/train/trainer.h"

namespace esp::app {
namespace {

struct TrainOptions {
  std::string run_file, run_dir, resume;
  std::vector<std::string> overrides;
  int nproc = 1;
  bool keys = false;
};

int run_train(const TrainOptions& options) {
  if (options.keys) {
    fmt::print("{}", train::describe_keys());
    return 0;
  }
  if (options.run_file.empty()) throw UsageError("train: a run file is wanted; configs/ has ready ones");
  std::vector<std::string> overrides = options.overrides;
  if (!options.run_dir.empty()) overrides.push_back("run.dir=" + options.run_dir);
  if (!options.resume.empty()) overrides.push_back("checkpoint.resume=" + options.resume);
  if (options.nproc != 1)
    throw UsageError(
        fmt::format("--nproc {}: this build trains on one process, with threads (run.threads)", options.nproc));
  const train::RunConfig config = train::read_run_config(options.run_file, overrides);
  train::Progress::Options progress;
  progress.live = isatty(STDERR_FILENO) != 0;
  progress.columns = terminal_columns(stderr);
  const train::TrainOutcome outcome = train::train(config, make_log(), progress);
  fmt::print(stderr, "{} after {} steps, loss {:.4f}\n  run folder  {}\n  checkpoint  {}\n",
             outcome.why == train::TrainOutcome::Why::done     ? "done"
             : outcome.why == train::TrainOutcome::Why::signal ? "stopped by a signal"
                                                               : "stopped at train.max_minutes",
             outcome.steps, outcome.final_loss, outcome.folder, outcome.checkpoint);
  return static_cast<int>(outcome.why == train::TrainOutcome::Why::signal ? ExitCode::requeue : ExitCode::done);
}

}  // namespace

void define_train(CLI::App& app, Chosen& chosen) {
  auto options = keep<TrainOptions>(app, chosen, run_train);
  app.add_option("run_file", options->run_file, "the run file (TOML)")->type_name("RUN.toml");
  app.add_option("--nproc", options->nproc, "ranks to start on this machine")->capture_default_str();
  app.add_option("--set", options->overrides, "section.key=value, over the run file; may be given often")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--run-dir", options->run_dir, "the run folder, over run.dir")->type_name("DIR");
  app.add_flag("--keys", options->keys, "print every key of the run file, and stop");
  app.add_option("--resume", options->resume, "auto, none or a checkpoint's path, over checkpoint.resume");
}

}  // namespace esp::app
