// espalier train RUN.toml: trains a model. Starts the ranks on this machine (--nproc), or runs as one rank of a job
// that a launcher (torchrun, srun, mpirun, espalier launch) has started.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "apps/espalier/auto_layout.h"
#include "apps/espalier/bench_job.h"
#include "apps/espalier/command.h"
#include "apps/espalier/flight_files.h"
#include "apps/espalier/peak_cache.h"
#include "apps/espalier/process_group.h"
#include "apps/espalier/process_setup.h"
#include "apps/espalier/run_file_copy.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/version.h"
#include "esp/base/error.h"
#include "esp/base/exit_code.h"
#include "esp/comm/communicator.h"
#include "esp/launch/world.h"
#include "esp/obs/file.h"
#include "esp/train/data_identity.h"
#include "esp/train/preflight.h"
#include "esp/train/run_changes.h"
#include "esp/train/run_folder.h"
#include "esp/train/run_monitor.h"
#include "esp/train/stop_signals.h"
#include "esp/train/trainer.h"

namespace esp::app {
namespace {

struct TrainOptions {
  std::string run_file, cluster;
  std::optional<std::string> run_dir, resume;
  std::vector<std::string> overrides;
  int nproc = 1;
  int check_ranks = 0;      // set by the launcher: checks the run for this many ranks, then exits
  int live_columns = 0;     // set for ranks: width of the parent's terminal
  bool one_screen = false;  // set for ranks: the parent's stdout and stderr are the same terminal
  bool keys = false, force = false, accept_changes = false;
  std::optional<std::string> text = {};  // text of the run file, which is read only once

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
  progress.live = options.live_columns > 0 || isatty(STDOUT_FILENO) != 0;
  progress.one_screen = options.one_screen || (progress.live && isatty(STDERR_FILENO) != 0);
  progress.columns = options.live_columns > 0 ? options.live_columns : terminal_columns(stdout);
  return progress;
}

Duration seconds(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

comm::CommOptions comm_options(const train::CommSection& section) {
  comm::CommOptions options;
  // NCCL transfers device memory only. Messages in host memory need another transport.
  options.transport = section.transport == "nccl" ? "auto" : section.transport;
  if (section.all_reduce != "auto") options.algorithms = "all_reduce=" + section.all_reduce;
  options.timeout = seconds(section.timeout_s);
  return options;
}

std::string outcome_text(const train::TrainOutcome& outcome, const train::RunConfig& config) {
  if (outcome.already_done)
    return fmt::format(
        "nothing left to do: {} is at step {}, and train.steps = {}\n"
        "increase train.steps to continue, use --resume none to start over, or --run-dir for another run folder\n",
        outcome.checkpoint, outcome.steps, config.train.steps);
  using Why = train::TrainOutcome::StopReason;
  return fmt::format("{} after {}{}\n  run folder  {}\n{}",
                     outcome.stop_reason == Why::done     ? "done"
                     : outcome.stop_reason == Why::signal ? "stopped by a signal"
                                                          : "stopped at train.max_minutes",
                     train::format_count(outcome.steps, "step"),
                     outcome.steps > 0 ? fmt::format(", loss {:.4f}", outcome.final_loss) : "", outcome.folder,
                     outcome.checkpoint.empty() ? "" : fmt::format("  checkpoint  {}\n", outcome.checkpoint));
}

// Prints the result to stdout. If stdout cannot be written, or there was nothing left to do, prints to stderr.
void print_outcome(const train::TrainOutcome& outcome, const train::RunConfig& config) {
  const std::string text = outcome_text(outcome, config);
  if (outcome.already_done || !train::write_text(stdout, text).empty()) train::write_text(stderr, text);
}

int train_in_process(const train::RunConfig& config, const TrainOptions& options, const train::JobContext& context,
                     const train::RecoveryOptions& recovery = {}) {
  const int rank = context.rank();  // copied, because a recovery may change the context
  const train::TrainOutcome outcome =
      train::train(config, make_log().with_rank(rank), progress_options(options), context, recovery, machine_peak());
  if (outcome.stop_reason == train::TrainOutcome::StopReason::failed) return static_cast<int>(kExitTraining);
  if (rank == 0) print_outcome(outcome, config);
  return static_cast<int>(outcome.stop_reason == train::TrainOutcome::StopReason::signal ? ExitCode::requeue
                                                                                         : ExitCode::done);
}

train::RunConfig with_layout(const train::RunConfig& previous, const TrainOptions& options,
                             const std::vector<std::string>& layout) {
  std::vector<std::string> all = options.all_overrides();
  all.insert(all.end(), layout.begin(), layout.end());
  train::RunConfig config = train::read_run_config(options.run_file, all, options.text);
  config.data.identity = previous.data.identity;
  return config;
}

// Rank 0 runs the planner and broadcasts the layout or an error. So all ranks build the same layout, or all fail.
train::RunConfig broadcast_layout(const train::RunConfig& config, const TrainOptions& options,
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
  return with_layout(config, options, layout);
}

// Whether the launcher has restarted the job, after a failure or because hosts joined or left.
bool is_restart(const launch::Environment& environment) {
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "ESPALIER_EPOCH"})
    if (const auto at = environment.find(name); at != environment.end() && std::atoi(at->second.c_str()) > 0)
      return true;
  return false;
}

int run_launched_rank(const train::RunConfig& config, const TrainOptions& options,
                      const launch::Environment& environment) {
  comm::CommOptions group_options = comm_options(config.comm);
  const launch::Placement place = launch::read_environment(environment);
  const Log log = make_log().with_rank(place.rank);
  const std::string folder = train::run_folder_of(config);
  group_options.flight = open_flight_recorder(folder, place.rank, place.size, log);
  net::NetOptions timeouts;
  timeouts.start_timeout = seconds(config.comm.start_timeout_s);
  timeouts.link_timeout = seconds(config.comm.link_timeout_s);
  try {
    ProcessGroup group(environment, group_options, timeouts,
                       train::stall_callbacks(log, folder, group_options.flight.get()),
                       train::rank_identity(config, version_id()));
    train::RecoveryOptions recovery = group.recovery();
    recovery.is_restart = is_restart(environment);
    recovery.accept_changes = options.accept_changes;
    if (!is_auto_layout(config)) return train_in_process(config, options, group.context(), recovery);
    // Disables in-place restart: the layout is broadcast only at the start, so a rank that joins later would not get
    // it.
    recovery.restart_in_place = nullptr;
    return train_in_process(broadcast_layout(config, options, group.ranks()), options, group.context(), recovery);
  } catch (const train::CollectiveError& refusal) {
    // espalier launch merges equal messages of ranks. Under another launcher, only rank 0 prints the message.
    if (place.rank == 0 || environment.contains("ESPALIER_SECRET_FD")) throw;
    return static_cast<int>(refusal.exit_code());
  }
}

// Recovery options of a single-rank job started by espalier launch.
train::RecoveryOptions single_rank_recovery(const launch::Environment& environment, const TrainOptions& options) {
  train::RecoveryOptions recovery;
  recovery.accept_changes = options.accept_changes;
  recovery.is_restart = is_restart(environment);
  if (const auto at = environment.find("ESPALIER_SNAPSHOTS"); at != environment.end())
    recovery.snapshot_folder = at->second;
  return recovery;
}

// Starts the ranks, forwards their output, forwards signals to them, and reports failures.
int start_ranks(const TrainOptions& options, const std::vector<std::string>& layout, const std::string& folder) {
  launch::LocalOptions job;
  job.num_ranks = options.nproc;
  job.command = {executable_path(), "train", options.run_file, "--nproc", std::to_string(options.nproc)};
  for (const auto& list : {options.all_overrides(), layout})
    for (const std::string& one : list) job.command.insert(job.command.end(), {"--set", one});
  if (isatty(STDOUT_FILENO) != 0) {
    job.command.insert(job.command.end(), {"--live-columns", std::to_string(terminal_columns(stdout))});
    if (isatty(STDERR_FILENO) != 0) job.command.emplace_back("--one-screen");
  }
  if (options.accept_changes) job.command.emplace_back("--continue-with-changes");
  job.plain_rank = 0;
  job.plain_stdout = true;
  const RunFileCopy copy(options.run_file, *options.text);
  job.environment[RunFileCopy::kVariable] = copy.variable();
  const train::StopSignals signals;
  const launch::LocalWorld world = launch::start_local_world(job, make_log());
  bool passed_on = false;
  while (!world.job->wait(Deadline::after(std::chrono::milliseconds(100)))) {
    if (signals.received() == 0 || passed_on) continue;
    world.job->signal(signals.received());
    passed_on = true;
  }
  if (const auto failure = world.job->failure()) {
    // Rank 0 has already printed the reason.
    if (failure->exit_code == static_cast<int>(kExitTraining)) return failure->exit_code;
    const bool killed = failure->exit_code > 128;
    const bool lost = killed || failure->exit_code == static_cast<int>(ExitCode::comm);
    throw Error(
        killed ? ExitCode::comm : static_cast<ExitCode>(failure->exit_code),
        launch::describe(*failure) +
            (lost ? fmt::format("\n`espalier flight {}` shows the last collectives of every rank", folder) : ""));
  }
  return static_cast<int>(world.job->wants_requeue() ? ExitCode::requeue : ExitCode::done);
}

// Runs the part of the job that belongs to this process: a single-process run, one rank of a launched job, or all
// ranks.
int train_or_launch_ranks(const TrainOptions& options, train::RunConfig config) {
  if (options.check_ranks > 0) {
    train::check_before_launch(config, is_auto_layout(config) ? 0 : options.check_ranks);
    train::check_changes(config, options.accept_changes);
    return 0;
  }
  const launch::Environment environment = launch::process_environment();
  const launch::Placement place = launch::read_environment(environment);
  if (place.launcher != "none" && place.size > 1) {
    if (options.nproc != 1 && options.nproc != place.size)
      throw UsageError(fmt::format("--nproc: got {}, but {} has already started {} ranks. Leave it out", options.nproc,
                                   place.launcher, place.size));
    return run_launched_rank(config, options, environment);
  }
  std::vector<std::string> layout;
  if (is_auto_layout(config)) {
    layout = choose_layout(config, options.nproc, options.cluster);
    config = with_layout(config, options, layout);
  }
  if (options.nproc == 1) {
    train::check_checkpoint_folder(config);
    return train_in_process(config, options, {}, single_rank_recovery(environment, options));
  }
  train::check_before_launch(config, options.nproc);
  const std::string folder = train::run_folder_of(config);
  train::check_folder_unlocked(folder, make_log());  // reports a locked folder once here, not in every rank
  train::check_changes(config, options.accept_changes);
  return start_ranks(options, layout, folder);
}

// Rejects a path that is not a run file, and names the command that accepts it.
void check_run_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto expected = [&](std::string_view got, const std::string& fix) {
    throw UsageError(fmt::format("{}: got {}; expected a run file (TOML). {}", path, got, fix));
  };
  const fs::path file(path);
  if (fs::is_directory(file, error)) {
    if (fs::exists(file / "run.toml", error))
      expected("a run folder", fmt::format("espalier train {}/run.toml continues in it", path));
    if (fs::exists(file / "manifest.json", error))
      expected("a checkpoint", fmt::format("espalier train RUN.toml --resume {} continues from it", path));
    if (fs::exists(file / "config.json", error))
      expected("a Hugging Face folder",
               fmt::format("espalier train RUN.toml --set model.init={} starts from its weights", path));
    expected("a folder", "Is a directory: give the path of a file in it");
  }
  if (!fs::exists(file, error)) {
    if (const size_t equals = path.find('='); equals != path.npos && path.find('.') < equals && path.find('/') > equals)
      throw UsageError(fmt::format("{0}: got no run file; expected RUN.toml before settings. Use --set {0}", path));
    const std::string beside = path + ".toml", ready = "configs/" + file.filename().string();
    for (const std::string& one : {beside, ready, ready + ".toml"})
      if (one != path && fs::is_regular_file(one, error))
        throw IoError(fmt::format("{}: No such file or directory. Use {}", path, one));
    throw IoError(fmt::format("{}: No such file or directory. configs/ has ready run files", path));
  }
  if (!fs::is_regular_file(file, error))
    expected(fs::is_fifo(file, error) ? "a pipe" : "a device",
             "Every rank and every restart reads the run file: write it to a file");
  if (file.extension() == ".json" || (fs::is_regular_file(file, error) && std::ifstream(path).peek() == '{'))
    expected("JSON", fmt::format("espalier import deepspeed {} converts a DeepSpeed configuration", path));
  if (file.extension() == ".yaml" || file.extension() == ".yml")
    expected("YAML", "Write its keys as TOML: [section], then key = value; espalier train --keys lists them");
}

// Rejects a run folder that is a checkpoint, a model folder, or a folder of several runs.
void check_run_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder(path);
  const auto refuse = [&](std::string_view got) {
    throw UsageError(
        fmt::format("run folder {}: got {}; expected a folder for this run only. Set another with --run-dir or run.dir",
                    path, got));
  };
  if (fs::exists(folder / "run.toml", error)) return;
  if (fs::exists(folder / "manifest.json", error)) refuse("a checkpoint");
  if (fs::exists(folder / "config.json", error)) refuse("a Hugging Face folder");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    // an earlier run, which was moved here
    if (entry.path().filename().string().starts_with("before-")) continue;
    if (fs::exists(entry.path() / "run.toml", error)) refuse("a folder that contains run folders");
    if (fs::exists(entry.path() / "manifest.json", error)) refuse("a folder of checkpoints");
  }
}

// Rejects a run folder in which the run would replace the user's run file with the resolved one. The resolved run.toml
// of the folder's own run may be given as the run file.
void check_run_file_is_kept(const std::string& run_file, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::equivalent(run_file, folder + "/run.toml", error)) return;
  if (fs::exists(folder + "/metrics.jsonl", error)) return;
  if (train::is_resolved_text(obs::read_whole_file(run_file, train::kMaxRunFileBytes))) return;
  throw UsageError(
      fmt::format("run folder {}: got the folder of the run file {}, which the run would replace with its resolved "
                  "run.toml; expected another folder. Set one with --run-dir or run.dir, or rename the run file",
                  folder, run_file));
}

train::RunConfig read_config(const TrainOptions& options) {
  const std::string& path = options.run_file;
  try {
    return train::read_run_config(path, options.all_overrides(), options.text);
  } catch (const UsageError& error) {
    const bool in_file = std::string_view(error.what()).starts_with(path + ":");
    if (!in_file || std::filesystem::path(path).extension() == ".toml") throw;
    throw UsageError(
        fmt::format("{}\nExpected a run file (TOML). If this is a data file, set data.train = \"{}\" in a run file",
                    error.what(), path));
  }
}

int run_train(const TrainOptions& given) {
  TrainOptions options = given;
  ignore_closed_pipes();
  if (options.keys) {
    fmt::print("{}", train::describe_keys());
    return 0;
  }
  if (options.run_file.empty())
    throw UsageError("train: got no run file; expected RUN.toml. configs/ has ready run files");
  if (options.nproc < 1) throw UsageError(fmt::format("--nproc: got {}; must be >= 1", options.nproc));
  if (options.run_dir && options.run_dir->empty()) throw UsageError("--run-dir: got an empty path; expected a folder");
  if (options.resume && options.resume->empty())
    throw UsageError("--resume: got an empty value; expected auto, none or the path of a checkpoint");
  options.text = inherited_run_file(launch::process_environment(), options.run_file);
  const bool inherited = options.text.has_value();
  if (!inherited) {
    check_run_file(options.run_file);
    options.text = obs::read_whole_file(options.run_file, train::kMaxRunFileBytes);
  }
  train::RunConfig config = read_config(options);
  if (!options.cluster.empty() && !is_auto_layout(config))
    throw UsageError("--cluster: has no effect without parallel.layout = auto. Leave it out");
  config.data.identity = train::data_identity(config);
  const std::string folder = train::run_folder_of(config);
  check_run_folder(folder);
  if (!inherited) check_run_file_is_kept(options.run_file, folder);
  const bool fresh = !std::filesystem::exists(folder);
  try {
    const int code = train_or_launch_ranks(options, config);
    // If the run had nothing to do, the new folder is removed. Ranks that fail remove theirs.
    if (fresh && code == 0) train::remove_empty_run(folder);
    return code;
  } catch (const obs::FileChanged&) {
    throw;  // the path may now belong to another run
  } catch (const Error& error) {
    // If communication failed at the start, the folder stays: its flight recorder files are needed.
    if (fresh && error.exit_code() != ExitCode::comm) train::remove_empty_run(folder);
    throw;
  }
}

}  // namespace

void define_train(const Arguments& app, SelectedCommand& chosen) {
  auto options = bind_options<TrainOptions>(app, chosen, run_train);
  app.add_option("run_file", options->run_file, "the run file (TOML)").type_name("RUN.toml");
  app.add_option("--nproc", options->nproc, "ranks to start on this machine").show_default();
  app.add_option("--set", options->overrides, "override section.key of the run file; repeatable")
      .type_name("KEY=VALUE")
      .one_word_each();
  app.add_option_function(
         "--run-dir", [options](const std::string& dir) { options->run_dir = dir; }, "run folder; overrides run.dir")
      .type_name("DIR");
  app.add_flag("--keys", options->keys, "print all keys of the run file and exit");
  app.add_flag("--force", options->force, "allow a compressor that diverges in theory, with a warning");
  app.add_option_function(
      "--resume", [options](const std::string& from) { options->resume = from; },
      "resume from auto (newest checkpoint), none or a path; overrides checkpoint.resume");
  app.add_flag("--continue-with-changes", options->accept_changes,
               "resume the run folder with a changed run file or other data; records the change");
  app.add_option("--cluster", options->cluster, "cluster for parallel.layout = auto, instead of this machine")
      .type_name("NAME|FILE.toml");
  app.add_option("--live-columns", options->live_columns, "").hide();
  app.add_flag("--one-screen", options->one_screen, "").hide();
  app.add_option("--check-ranks", options->check_ranks, "").hide();
}

}  // namespace esp::app
