// espalier train RUN.toml: trains. Starts the ranks itself on this machine (--nproc), or joins those that a launcher
// (torchrun, srun, mpirun, our own) has started.
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
#include "apps/espalier/hygiene.h"
#include "apps/espalier/joined.h"
#include "apps/espalier/peak_cache.h"
#include "apps/espalier/run_file_copy.h"
#include "apps/espalier/terminal.h"
#include "apps/espalier/version.h"
#include "esp/base/error.h"
#include "esp/base/exit_code.h"
#include "esp/comm/communicator.h"
#include "esp/launch/world.h"
#include "esp/obs/file.h"
#include "esp/train/data_identity.h"
#include "esp/train/guards.h"
#include "esp/train/preflight.h"
#include "esp/train/run_changes.h"
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
  int check_ranks = 0;      // from the launcher: check the run for this many ranks, then exit
  int live_columns = 0;     // for ranks, from the process that holds the terminal
  bool one_screen = false;  // likewise: its stdout and stderr are both the terminal
  bool keys = false, force = false, accept_changes = false;
  std::optional<std::string> text = {};  // of the run file, read once

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
  options.transport = section.transport == "nccl" ? "auto" : section.transport;  // the host's words go another way
  if (section.all_reduce != "auto") options.algorithms = "all_reduce=" + section.all_reduce;
  options.timeout = seconds(section.timeout_s);
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

// The result goes to stdout, and to stderr where stdout cannot be written; that there was nothing to do is no result.
void print_outcome(const train::TrainOutcome& outcome, const train::RunConfig& config) {
  const std::string text = words_of(outcome, config);
  if (outcome.nothing_left || !train::put_text(stdout, text).empty()) train::put_text(stderr, text);
}

int train_here(const train::RunConfig& config, const TrainOptions& options, const train::Standing& standing,
               const train::Recovery& recovery = {}) {
  const int rank = standing.rank();  // what the standing lends may change with a recovery
  const train::TrainOutcome outcome =
      train::train(config, make_log().with_rank(rank), progress_options(options), standing, recovery, machine_peak());
  if (outcome.why == train::TrainOutcome::Why::failed) return static_cast<int>(kExitTraining);
  if (rank == 0) print_outcome(outcome, config);
  return static_cast<int>(outcome.why == train::TrainOutcome::Why::signal ? ExitCode::requeue : ExitCode::done);
}

train::RunConfig with_layout(const train::RunConfig& former, const TrainOptions& options,
                             const std::vector<std::string>& layout) {
  std::vector<std::string> all = options.all_overrides();
  all.insert(all.end(), layout.begin(), layout.end());
  train::RunConfig config = train::read_run_config(options.run_file, all, options.text);
  config.data.identity = former.data.identity;
  return config;
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
  return with_layout(config, options, layout);
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
  net::NetOptions timeouts;
  timeouts.start_timeout = seconds(config.comm.start_timeout_s);
  timeouts.link_timeout = seconds(config.comm.link_timeout_s);
  try {
    Joined joined(environment, communicating, timeouts, train::stall_listener(log, folder, communicating.flight.get()),
                  train::identity_of(config, version_id()));
    train::Recovery recovery = joined.recovery();
    recovery.again = started_again(environment);
    recovery.accept_changes = options.accept_changes;
    if (!asks_for_layout(config)) return train_here(config, options, joined.standing(), recovery);
    // The planner's answer is agreed on once, among those that start: a newcomer to a run in place has not heard it.
    recovery.reform = nullptr;
    return train_here(agree_on_layout(config, options, joined.ranks()), options, joined.standing(), recovery);
  } catch (const train::CollectiveRefusal& refusal) {
    // Our own launcher merges equal messages of its ranks; under another launcher rank 0 prints it for all.
    if (place.rank == 0 || environment.contains("ESPALIER_SECRET_FD")) throw;
    return static_cast<int>(refusal.exit_code());
  }
}

// What a rank alone, started by our launcher, may come back to.
train::Recovery alone(const launch::Environment& environment, const TrainOptions& options) {
  train::Recovery recovery;
  recovery.accept_changes = options.accept_changes;
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
    if (failure->exit_code == static_cast<int>(kExitTraining)) return failure->exit_code;  // the first rank said why
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
    train::check_changes(config, options.accept_changes);
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
    config = with_layout(config, options, layout);
  }
  if (options.nproc == 1) {
    train::check_checkpoint_folder(config);
    return train_here(config, options, {}, alone(environment, options));
  }
  train::check_before_ranks(config, options.nproc);
  const std::string folder = train::run_folder_of(config);
  train::check_free(folder, make_log());  // one word, before the ranks come
  train::check_changes(config, options.accept_changes);
  return start_ranks(options, layout, folder);
}

// What was named instead of a run file, and the command that takes it.
void check_run_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto expected = [&](std::string_view got, const std::string& fix) {
    throw UsageError(fmt::format("{}: got {}; expected a run file (TOML). {}", path, got, fix));
  };
  const fs::path file(path);
  if (fs::is_directory(file, error)) {
    if (fs::exists(file / "run.toml", error))
      expected("a run folder", fmt::format("espalier train {}/run.toml goes on in it", path));
    if (fs::exists(file / "manifest.json", error))
      expected("a checkpoint", fmt::format("espalier train RUN.toml --resume {} goes on from it", path));
    if (fs::exists(file / "config.json", error))
      expected("a Hugging Face folder",
               fmt::format("espalier train RUN.toml --set model.init={} begins with its weights", path));
    expected("a folder", "Is a directory: name a file in it");
  }
  if (!fs::exists(file, error)) {
    const std::string beside = path + ".toml", ready = "configs/" + file.filename().string();
    for (const std::string& one : {beside, ready, ready + ".toml"})
      if (one != path && fs::is_regular_file(one, error))
        throw IoError(fmt::format("{}: No such file or directory. Use {}", path, one));
    throw IoError(fmt::format("{}: No such file or directory. configs/ has ready run files", path));
  }
  if (!fs::is_regular_file(file, error))
    expected(fs::is_fifo(file, error) ? "a pipe" : "a device",
             "Every rank reads it, and a restart again: write it to a file");
  if (file.extension() == ".json" || (fs::is_regular_file(file, error) && std::ifstream(path).peek() == '{'))
    expected("JSON", fmt::format("espalier import deepspeed {} converts a DeepSpeed configuration", path));
  if (file.extension() == ".yaml" || file.extension() == ".yml")
    expected("YAML", "Write its keys as TOML: [section], then key = value; espalier train --keys lists them");
}

// A folder that other commands would take for something else, or for one run where it holds several.
void check_run_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder(path);
  const auto refuse = [&](std::string_view got) {
    throw UsageError(fmt::format(
        "run folder {}: got {}; expected a folder of its own. --run-dir or run.dir names another", path, got));
  };
  if (fs::exists(folder / "run.toml", error)) return;
  if (fs::exists(folder / "manifest.json", error)) refuse("a checkpoint");
  if (fs::exists(folder / "config.json", error)) refuse("a Hugging Face folder");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("before-")) continue;  // a former run of this folder
    if (fs::exists(entry.path() / "run.toml", error)) refuse("a folder that holds run folders");
    if (fs::exists(entry.path() / "manifest.json", error)) refuse("a folder of checkpoints");
  }
}

train::RunConfig read_config(const TrainOptions& options) {
  const std::string& path = options.run_file;
  try {
    return train::read_run_config(path, options.all_overrides(), options.text);
  } catch (const UsageError& error) {
    const bool in_file = std::string_view(error.what()).starts_with(path + ":");
    if (!in_file || std::filesystem::path(path).extension() == ".toml") throw;
    throw UsageError(
        fmt::format("{}\nA run file (TOML) is expected; it names data as data.train = \"{}\"", error.what(), path));
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
  options.text = copied_run_file(launch::process_environment(), options.run_file);
  if (!options.text) {
    check_run_file(options.run_file);
    options.text = obs::read_whole_file(options.run_file, train::kMaxRunFileBytes);
  }
  train::RunConfig config = read_config(options);
  if (!options.cluster.empty() && !asks_for_layout(config))
    throw UsageError("--cluster: read only with parallel.layout = auto, which this run does not have. Leave it out");
  config.data.identity = train::data_identity(config);
  const std::string folder = train::run_folder_of(config);
  check_run_folder(folder);
  const bool fresh = !std::filesystem::exists(folder);
  try {
    const int code = begin(options, config);
    if (fresh && code == 0)
      train::remove_unbegun(folder);  // there was nothing to do; ranks that fail clean up themselves
    return code;
  } catch (const obs::FileChanged&) {
    throw;  // the path may lead to the folder of another run by now
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
  app.add_flag("--continue-with-changes", options->accept_changes,
               "go on in the run folder with another run file or other data, recorded in it");
  app.add_option("--cluster", options->cluster, "for parallel.layout = auto: the cluster, over this machine's")
      .type_name("NAME|FILE.toml");
  app.add_option("--live-columns", options->live_columns, "").hide();
  app.add_flag("--one-screen", options->one_screen, "").hide();
  app.add_option("--check-ranks", options->check_ranks, "").hide();
}

}  // namespace esp::app
