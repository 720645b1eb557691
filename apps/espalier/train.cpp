// espalier train RUN.toml: trains. Starts the ranks itself on this machine (--nproc), or joins those that a launcher
// (torchrun, srun, mpirun, our own) has started.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "apps/espalier/auto_layout.h"
#include "apps/espalier/bench_job.h"
#include "apps/espalier/command.h"
#include "apps/espalier/flight_files.h"
#include "apps/espalier/joined.h"
#include "apps/espalier/terminal.h"
#include "esp/base/error.h"
#include "esp/comm/communicator.h"
#include "esp/launch/world.h"
#include "esp/train/guards.h"
#include "esp/train/preflight.h"
#include "esp/train/run_folder.h"
#include "esp/train/signals.h"
#include "esp/train/trainer.h"

namespace esp::app {
namespace {

struct TrainOptions {
  std::string run_file, cluster;
  std::optional<std::string> run_dir, resume;
  std::vector<std::string> overrides;
  int nproc = 1;
  int check_ranks = 0;   // asked by the launcher: check what so many ranks would begin with, and stop
  int live_columns = 0;  // told to ranks by the process that holds the terminal
  bool keys = false, force = false;

  std::vector<std::string> all_overrides() const {
    std::vector<std::string> all = overrides;
    if (run_dir) all.push_back("run.dir=" + *run_dir);
    if (resume) all.push_back("checkpoint.resume=" + *resume);
    if (force) all.push_back("sync.force=true");
    return all;
  }
};

train::Progress::Options progress_options(const TrainOptions& options) {
  train::Progress::Options progress;
  progress.live = options.live_columns > 0 || isatty(STDERR_FILENO) != 0;
  progress.columns = options.live_columns > 0 ? options.live_columns : terminal_columns(stderr);
  return progress;
}

comm::CommOptions comm_options(const train::CommSection& section) {
  comm::CommOptions options;
  options.transport = section.transport == "nccl" ? "auto" : section.transport;  // the host's words go another way
  if (section.all_reduce != "auto") options.algorithms = "all_reduce=" + section.all_reduce;
  options.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(section.timeout_s));
  return options;
}

std::string words_of(const train::TrainOutcome& outcome, const train::RunConfig& config) {
  if (outcome.nothing_left)
    return fmt::format(
        "nothing left to do: {} is at step {}, and train.steps = {}\n"
        "a larger train.steps goes on from there, --resume none begins anew, and --run-dir names another run folder\n",
        outcome.checkpoint, outcome.steps, config.train.steps);
  using Why = train::TrainOutcome::Why;
  return fmt::format("{} after {}{}\n  run folder  {}\n{}",
                     outcome.why == Why::done     ? "done"
                     : outcome.why == Why::signal ? "stopped by a signal"
                                                  : "stopped at train.max_minutes",
                     train::counted(outcome.steps, "step"),
                     outcome.steps > 0 ? fmt::format(", loss {:.4f}", outcome.final_loss) : "", outcome.folder,
                     outcome.checkpoint.empty() ? "" : fmt::format("  checkpoint  {}\n", outcome.checkpoint));
}

int train_here(const train::RunConfig& config, const TrainOptions& options, const train::Standing& standing,
               const train::Recovery& recovery = {}) {
  const int rank = standing.rank();  // what the standing lends may change with a recovery
  const train::TrainOutcome outcome =
      train::train(config, make_log().with_rank(rank), progress_options(options), standing, recovery);
  // The terminal may be gone, which is no reason to end otherwise.
  if (rank == 0) std::fputs(words_of(outcome, config).c_str(), stderr);
  return static_cast<int>(outcome.why == train::TrainOutcome::Why::signal ? ExitCode::requeue : ExitCode::done);
}

train::RunConfig with_layout(const TrainOptions& options, const std::vector<std::string>& layout) {
  std::vector<std::string> all = options.all_overrides();
  all.insert(all.end(), layout.begin(), layout.end());
  return train::read_run_config(options.run_file, all);
}

// The first rank asks the planner and tells the others, also when there is no answer: all of them build the same, or
// none.
train::RunConfig agree_on_layout(const train::RunConfig& config, const TrainOptions& options,
                                 comm::Communicator& ranks) {
  constexpr char kRefused = '!';
  std::string text;
  if (ranks.rank() == 0) {
    try {
      for (const std::string& one : choose_layout(config, ranks.size(), options.cluster)) text += one + "\n";
    } catch (const Error& error) {
      text = kRefused + std::string(error.what());
    }
  }
  auto size = static_cast<int64_t>(text.size());
  ranks.broadcast(&size, 1, DType::i64, 0);
  text.resize(static_cast<size_t>(size));
  ranks.broadcast(text.data(), text.size(), DType::u8, 0);
  if (text.starts_with(kRefused)) throw UsageError(text.substr(1));
  std::vector<std::string> layout;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    layout.push_back(text.substr(at, text.find('\n', at) - at));
  return with_layout(options, layout);
}

// Whether a launcher starts the job once more: after a failure, or because hosts came or went.
bool started_again(const launch::Environment& environment) {
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "ESPALIER_EPOCH"})
    if (const auto at = environment.find(name); at != environment.end() && std::atoi(at->second.c_str()) > 0)
      return true;
  return false;
}

int join(const train::RunConfig& config, const TrainOptions& options, const launch::Environment& environment) {
  comm::CommOptions communicating = comm_options(config.comm);
  const launch::Placement place = launch::read_environment(environment);
  const Log log = make_log().with_rank(place.rank);
  const std::string folder = train::run_folder_of(config);
  communicating.flight = open_flight_recorder(folder, place.rank, place.size, log);
  Joined joined(environment, communicating, train::stall_listener(log, folder, communicating.flight.get()));
  train::Recovery recovery = joined.recovery();
  recovery.again = started_again(environment);
  if (!asks_for_layout(config)) return train_here(config, options, joined.standing(), recovery);
  // The planner's answer is agreed on once, among those that start: a newcomer to a run in place has not heard it.
  recovery.reform = nullptr;
  return train_here(agree_on_layout(config, options, joined.ranks()), options, joined.standing(), recovery);
}

// What a rank alone, started by our launcher, may come back to.
train::Recovery alone(const launch::Environment& environment) {
  train::Recovery recovery;
  recovery.again = started_again(environment);
  if (const auto at = environment.find("ESPALIER_SNAPSHOTS"); at != environment.end()) recovery.snapshots = at->second;
  return recovery;
}

// This process starts the ranks, passes their words and our signals on, and tells what became of them.
int start_ranks(const TrainOptions& options, const std::vector<std::string>& layout, const std::string& folder) {
  launch::LocalOptions job;
  job.num_ranks = options.nproc;
  job.command = {own_path(), "train", options.run_file, "--nproc", std::to_string(options.nproc)};
  for (const auto& list : {options.all_overrides(), layout})
    for (const std::string& one : list) job.command.insert(job.command.end(), {"--set", one});
  if (isatty(STDERR_FILENO) != 0)
    job.command.insert(job.command.end(), {"--live-columns", std::to_string(terminal_columns(stderr))});
  job.plain_rank = 0;
  const train::StopSignals signals;
  const launch::LocalWorld world = launch::start_local_world(job, make_log());
  bool passed_on = false;
  while (!world.job->wait(Deadline::after(std::chrono::milliseconds(100)))) {
    if (signals.received() == 0 || passed_on) continue;
    world.job->signal(signals.received());
    passed_on = true;
  }
  if (const auto failure = world.job->failure()) {
    const bool killed = failure->exit_code > 128;
    const bool lost = killed || failure->exit_code == static_cast<int>(ExitCode::comm);
    throw Error(killed ? ExitCode::comm : static_cast<ExitCode>(failure->exit_code),
                launch::describe(*failure) +
                    (lost ? fmt::format("\n`espalier flight {}` tells where every rank stood", folder) : ""));
  }
  return static_cast<int>(world.job->wants_requeue() ? ExitCode::requeue : ExitCode::done);
}

// The ranks of this run that are this process's to start: itself, those it joins, or all.
int begin(const TrainOptions& options, train::RunConfig config) {
  if (options.check_ranks > 0) {
    train::check_before_ranks(config, asks_for_layout(config) ? 0 : options.check_ranks);
    return 0;
  }
  const launch::Environment environment = launch::process_environment();
  const launch::Placement place = launch::read_environment(environment);
  if (place.launcher != "none" && place.size > 1) {
    if (options.nproc != 1 && options.nproc != place.size)
      throw UsageError(fmt::format("--nproc {}: {} has started {} ranks, and this is one of them; leave it out",
                                   options.nproc, place.launcher, place.size));
    return join(config, options, environment);
  }
  std::vector<std::string> layout;
  if (asks_for_layout(config)) {
    layout = choose_layout(config, options.nproc, options.cluster);
    config = with_layout(options, layout);
  }
  if (options.nproc == 1) return train_here(config, options, {}, alone(environment));
  train::check_before_ranks(config, options.nproc);
  const std::string folder = train::run_folder_of(config);
  train::check_free(folder, make_log());  // one word, before the ranks come
  return start_ranks(options, layout, folder);
}

int run_train(const TrainOptions& options) {
  if (options.keys) {
    fmt::print("{}", train::describe_keys());
    return 0;
  }
  if (options.run_file.empty()) throw UsageError("train: a run file is wanted; configs/ has ready ones");
  if (options.nproc < 1) throw UsageError(fmt::format("--nproc {}: at least one rank is wanted", options.nproc));
  if (options.run_dir && options.run_dir->empty()) throw UsageError("--run-dir \"\": a folder's path is wanted");
  if (options.resume && options.resume->empty())
    throw UsageError("--resume \"\": auto, none or a checkpoint's path is wanted");
  const train::RunConfig config = train::read_run_config(options.run_file, options.all_overrides());
  const std::string folder = train::run_folder_of(config);
  const bool fresh = !std::filesystem::exists(folder);
  try {
    const int code = begin(options, config);
    if (fresh) train::remove_unbegun(folder);  // there was nothing to do
    return code;
  } catch (const Error& error) {
    // Of ranks that lost each other at the start, the flight records tell.
    if (fresh && error.exit_code() != ExitCode::comm) train::remove_unbegun(folder);
    throw;
  }
}

}  // namespace

void define_train(const Arguments& app, Chosen& chosen) {
  auto options = keep<TrainOptions>(app, chosen, run_train);
  app.add_option("run_file", options->run_file, "the run file (TOML)").type_name("RUN.toml");
  app.add_option("--nproc", options->nproc, "ranks to start on this machine").show_default();
  app.add_option("--set", options->overrides, "section.key=value, over the run file; may be given often")
      .type_name("KEY=VALUE")
      .one_word_each();
  app.add_option_function(
         "--run-dir", [options](const std::string& dir) { options->run_dir = dir; }, "the run folder, over run.dir")
      .type_name("DIR");
  app.add_flag("--keys", options->keys, "print every key of the run file, and stop");
  app.add_flag("--force", options->force, "train with a compressor that diverges by theory, with a warning");
  app.add_option_function(
      "--resume", [options](const std::string& from) { options->resume = from; },
      "auto, none or a checkpoint's path, over checkpoint.resume");
  app.add_option("--cluster", options->cluster, "for parallel.layout = auto: the cluster, over this machine's")
      .type_name("NAME|FILE.toml");
  app.add_option("--live-columns", options->live_columns, "").hide();
  app.add_option("--check-ranks", options->check_ranks, "").hide();
}

}  // namespace esp::app
