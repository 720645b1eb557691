// espalier launch: starts the ranks of a job on this host, alone or together with other hosts, and restarts them after
// a failure. Flags and exported variables are those of torchrun, so it starts PyTorch scripts as well as `espalier
// train`.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/command.h"
#include "apps/espalier/process_setup.h"
#include "apps/espalier/program.h"
#include "apps/espalier/run_file_copy.h"
#include "apps/espalier/terminal.h"
#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/launch/agent.h"
#include "esp/launch/memory_folder.h"
#include "esp/launch/secret.h"
#include "esp/net/address.h"
#include "esp/net/secret.h"
#include "esp/obs/file.h"
#include "esp/train/run_config.h"
#include "esp/train/run_progress.h"
#include "esp/train/stop_signals.h"

namespace esp::app {
namespace {

struct LaunchOptions {
  std::string nnodes = "1", nproc = "1", endpoint, job, secret_file, bind, master_address, module;
  int node_rank = 0, max_restarts = 3, master_port = 29400;
  double start_timeout_s = 0, link_timeout_s = 0;  // 0: the run file's value is used
  bool standalone = false, no_python = false, no_reform = false, encrypt = false;
  const SelectedCommand* chosen = nullptr;
};

constexpr int kDefaultPort = 29400;

int parse_count(const std::string& text, const char* flag) {
  if (text == "auto" || text == "cpu") return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  size_t used = 0;
  int value = 0;
  try {
    value = std::stoi(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || value < 1)
    throw UsageError(fmt::format("{}: got {}; must be a whole number >= 1", flag, text));
  return value;
}

// Parses a number of hosts: "4", or "2:4" for an elastic job.
void parse_num_hosts(const std::string& text, launch::AgentOptions& agent) {
  const size_t colon = text.find(':');
  agent.num_nodes = parse_count(colon == std::string::npos ? text : text.substr(colon + 1), "--nnodes");
  if (colon == std::string::npos) return;
  agent.min_nodes = parse_count(text.substr(0, colon), "--nnodes");
  if (agent.min_nodes > agent.num_nodes)
    throw UsageError(fmt::format("--nnodes: got {}; expected MIN:MAX with MIN <= MAX", text));
}

bool is_subcommand(const std::string& word) {
  for (const Command& command : commands())
    if (!command.hidden && command.name == word) return true;
  return false;
}

bool names_option(const Arguments& command, const std::string& word) {
  for (const OptionText& option : command.options())
    if (std::find(option.names.begin(), option.names.end(), word.substr(0, word.find('='))) != option.names.end())
      return true;
  return false;
}

Arguments command_named(const SelectedCommand& chosen, const std::string& name) {
  for (const Arguments& command : chosen.root.subcommands())
    if (command.name() == name) return command;
  ESP_CHECK(false, "espalier has no subcommand {}", name);
}

// A corrected command line, for an error message. Options of launch that the user typed after `train` come before it.
struct ReorderedCommand {
  std::string text, moved;  // moved: the first option that was moved; empty: none
};
ReorderedCommand reorder_command(const SelectedCommand& chosen, const std::vector<std::string>& words) {
  const Arguments launch = command_named(chosen, "launch"), train = command_named(chosen, "train");
  std::vector<std::string> leading_words = {"espalier", "launch"}, trailing_words = {"--", "train"};
  leading_words.insert(leading_words.end(), chosen.leading_words.begin(), chosen.leading_words.end());
  ReorderedCommand result;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!names_option(launch, words[i]) || names_option(train, words[i])) {
      trailing_words.push_back(words[i]);
      continue;
    }
    if (result.moved.empty()) result.moved = words[i];
    leading_words.push_back(words[i]);
    for (const OptionText& option : launch.options())
      if (option.takes_value && i + 1 < words.size() &&
          std::find(option.names.begin(), option.names.end(), words[i]) != option.names.end()) {
        leading_words.push_back(words[++i]);
        break;
      }
  }
  result.text = fmt::format("{} {}", fmt::join(leading_words, " "), fmt::join(trailing_words, " "));
  return result;
}

// Rejects --nproc after `train`: launch sets the number of ranks.
void reject_nproc(const std::vector<std::string>& words, const std::string& per_node) {
  for (const std::string& word : words)
    if (words.front() == "train" && (word == "--nproc" || word.starts_with("--nproc=")))
      throw UsageError(
          fmt::format("--nproc: launch already starts {} ranks on each host. Leave it out, or give "
                      "--nproc-per-node to launch",
                      per_node));
}

// Returns the command line of a rank. `train …` runs this binary; a .py file or -m runs Python; other words are a
// program.
std::vector<std::string> build_command(const LaunchOptions& options) {
  std::vector<std::string> words = options.chosen->trailing_words;
  if (!options.module.empty()) words.insert(words.begin(), {"python3", "-u", "-m", options.module});
  if (words.empty())
    throw UsageError("launch: got no command; for example `espalier launch --nproc-per-node 2 -- train RUN.toml`");
  if (!options.module.empty()) return words;
  if (std::filesystem::path(words.front()).extension() == ".toml") {
    throw UsageError(fmt::format("launch: got the run file {}; expected a command. Use `{}`", words.front(),
                                 reorder_command(*options.chosen, words).text));
  }
  if (words.front() == "train") {
    const ReorderedCommand corrected = reorder_command(*options.chosen, {words.begin() + 1, words.end()});
    if (!corrected.moved.empty())
      throw UsageError(fmt::format("{}: got an option of launch after train; expected it before. Use `{}`",
                                   corrected.moved, corrected.text));
  }
  if (is_subcommand(words.front())) {
    reject_nproc(words, options.nproc);
    words.insert(words.begin(), executable_path());
  } else if (!options.no_python && std::filesystem::path(words.front()).extension() == ".py") {
    words.insert(words.begin(), {"python3", "-u"});
  }
  return words;
}

std::string rendezvous_endpoint(const LaunchOptions& options) {
  if (!options.endpoint.empty())
    return options.endpoint.find(':') == std::string::npos ? fmt::format("{}:{}", options.endpoint, kDefaultPort)
                                                           : options.endpoint;
  if (options.master_address.empty()) return "";
  return fmt::format("{}:{}", options.master_address, options.master_port);
}

// Creates a memory folder for snapshots. If that fails, the job runs without snapshots in memory.
void add_memory_folder(launch::AgentOptions& agent, std::optional<launch::MemoryFolder>& folder) {
  try {
    agent.environment["ESPALIER_SNAPSHOTS"] = folder.emplace().path();
  } catch (const IoError& error) {
    agent.log.warn("{}; this job runs without snapshots in memory", error.what());
  }
}

// Finds the word that `train` will parse as its run file. Empty: there is none; `train` then reports the error.
std::string find_run_file(const std::vector<std::string>& words, const Arguments& root) {
  if (words.empty() || words.front() != "train") return {};
  std::vector<std::string> with_value;
  for (const Arguments& command : root.subcommands())
    if (command.name() == "train")
      for (const OptionText& option : command.options())
        if (option.takes_value && !option.positional)
          with_value.insert(with_value.end(), option.names.begin(), option.names.end());
  for (size_t i = 1; i < words.size(); ++i) {
    if (!words[i].starts_with("-")) return words[i];
    if (std::find(with_value.begin(), with_value.end(), words[i]) != with_value.end()) ++i;
  }
  return {};
}

// Copies the current run file, so that all ranks of the job read the same text. If it cannot be read, the ranks report
// it.
void copy_run_file(launch::AgentOptions& agent, const LaunchOptions& options, std::optional<RunFileCopy>& copy) {
  const std::string path = find_run_file(options.chosen->trailing_words, options.chosen->root);
  std::error_code error;
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) return;
  copy.emplace(path, obs::read_whole_file(path, train::kMaxRunFileBytes));
  agent.environment[RunFileCopy::kVariable] = copy->variable();
  agent.on_restart = [&copy, path] {
    if (copy->is_outdated())
      fmt::print(stderr, "{} has changed since the job began: ranks continue with the original values\n", path);
  };
}

// Checks the run file once before ranks are started. On several hosts the ranks check it instead: if one host exited
// here, the other hosts would wait for it.
void check_command(const launch::AgentOptions& agent, std::vector<std::string> words) {
  if (agent.num_nodes > 1 || agent.per_node == 1 || words.empty() || words.front() != "train") return;
  for (const char* flag : {"--help", "-h", "--keys"})
    if (std::find(words.begin(), words.end(), flag) != words.end()) return;
  words.insert(words.end(), {"--check-ranks", std::to_string(agent.per_node)});
  run_command_line(words);
}

// Timeouts from the run file's [comm], if the command is `train RUN.toml` and the file can be read. The ranks
// report errors in the file.
train::CommSection configured_timeouts(const std::vector<std::string>& words) {
  if (words.empty() || words.front() != "train") return {};
  std::string file;
  std::vector<std::string> overrides;
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--set" && i + 1 < words.size()) {
      overrides.push_back(words[++i]);
    } else if (words[i].starts_with("--set=")) {
      overrides.push_back(words[i].substr(6));
    } else if (file.empty() && words[i].ends_with(".toml")) {
      file = words[i];
    }
  }
  std::erase_if(overrides, [](const std::string& word) { return !word.starts_with("comm."); });
  try {
    return file.empty() ? train::CommSection() : train::read_run_config(file, overrides).comm;
  } catch (const Error&) {
    return {};
  }
}

// Sets the timeouts of the launcher. If a flag overrides the run file, also sets the timeouts of the ranks.
void set_timeouts(const LaunchOptions& options, launch::AgentOptions& agent) {
  const train::CommSection section = configured_timeouts(options.chosen->trailing_words);
  const auto choose = [&](double flag, double key, const char* variable) {
    if (flag > 0) agent.environment[variable] = fmt::format("{:.9g}", flag);
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(flag > 0 ? flag : key));
  };
  agent.net.start_timeout = choose(options.start_timeout_s, section.start_timeout_s, "ESPALIER_START_TIMEOUT_S");
  agent.net.link_timeout = choose(options.link_timeout_s, section.link_timeout_s, "ESPALIER_LINK_TIMEOUT_S");
}

int run_launch(const LaunchOptions& options) {
  ignore_closed_pipes();
  launch::AgentOptions agent;
  if (options.standalone && options.nnodes != LaunchOptions().nnodes)
    throw UsageError(fmt::format("--standalone: got --nnodes {} too; expected only one of these options. Leave one out",
                                 options.nnodes));
  if (!options.standalone) parse_num_hosts(options.nnodes, agent);
  agent.per_node = parse_count(options.nproc, "--nproc-per-node");
  agent.node_rank = options.node_rank;
  agent.endpoint = rendezvous_endpoint(options);
  agent.job = options.job;
  agent.max_restarts = options.max_restarts;
  agent.command = build_command(options);
  std::optional<RunFileCopy> copy;
  if (options.module.empty()) copy_run_file(agent, options, copy);
  if (options.module.empty()) check_command(agent, options.chosen->trailing_words);
  set_timeouts(options, agent);
  agent.log = make_log();
  if (options.bind == "any") {
    agent.net.bind_any = true;
  } else {
    agent.net.interface = options.bind;
  }
  const launch::Environment environment = launch::process_environment();
  agent.secret = options.secret_file.empty() ? launch::read_secret(environment) : net::load_secret(options.secret_file);
  if (options.encrypt) agent.environment["ESPALIER_ENCRYPT"] = "1";
  // As torchrun does: if several ranks share this host, each gets one OpenMP thread, unless the user set another
  // number.
  if (agent.per_node > 1 && !environment.contains("OMP_NUM_THREADS")) agent.environment["OMP_NUM_THREADS"] = "1";
  // Only Espalier's own ranks get in-place recovery and a short grace period. Other programs get the default grace
  // period.
  std::optional<launch::MemoryFolder> snapshots;
  agent.plain_stdout = !options.chosen->trailing_words.empty() && options.chosen->trailing_words.front() == "train";
  if (agent.max_restarts > 0 &&
      is_subcommand(options.chosen->trailing_words.empty() ? "" : options.chosen->trailing_words.front())) {
    agent.in_place = !options.no_reform && agent.per_node > 1;
    agent.grace = std::chrono::milliseconds(100);
    add_memory_folder(agent, snapshots);
    if (snapshots && agent.plain_stdout)
      agent.highest_step = [path = snapshots->path()] { return train::highest_step(path); };
  }
  const train::StopSignals signals;
  agent.signal = [&signals] { return signals.received(); };
  return launch::run_agent(agent);
}

}  // namespace

void define_launch(const Arguments& app, SelectedCommand& chosen) {
  auto options = bind_options<LaunchOptions>(app, chosen, run_launch);
  options->chosen = &chosen;
  app.add_option("--nnodes", options->nnodes, "hosts of the job, or MIN:MAX for an elastic job").show_default();
  app.add_option("--nproc-per-node,--nproc_per_node", options->nproc, "ranks on each host, or auto: one per core")
      .show_default();
  app.add_option("--node-rank,--node_rank", options->node_rank, "number of this host, from 0")
      .show_default()
      .non_negative();
  app.add_option("--rdzv-endpoint,--rdzv_endpoint", options->endpoint, "address of host 0, the same on every host")
      .type_name("HOST:PORT");
  app.add_option("--master-addr,--master_addr", options->master_address, "host of --rdzv-endpoint, as in torchrun")
      .type_name("HOST");
  app.add_option("--master-port,--master_port", options->master_port, "port of --rdzv-endpoint, with --master-addr")
      .show_default()
      .within(1, 65535);
  app.add_option("--rdzv-id,--rdzv_id", options->job,
                 "name of the job, the same on every host [derived from the secret]")
      .type_name("NAME");
  app.add_option("--secret-file", options->secret_file,
                 "file of mode 0600 with the job's secret, the same on every host")
      .type_name("FILE");
  app.add_flag("--encrypt", options->encrypt, "encrypt the TCP traffic between ranks");
  app.add_option("--bind", options->bind, "interface, address or CIDR to listen on; any: all interfaces");
  app.add_option("--max-restarts,--max_restarts", options->max_restarts,
                 "maximum number of restarts after failures; 0: no restarts, no snapshots in memory")
      .show_default()
      .non_negative();
  app.add_option("--rdzv-timeout,--rdzv_timeout", options->start_timeout_s,
                 "seconds to wait for the other hosts and ranks [comm.start_timeout_s, 600]")
      .type_name("S")
      .positive();
  app.add_option("--link-timeout", options->link_timeout_s,
                 "seconds without data until a host counts as lost [comm.link_timeout_s, 30]")
      .type_name("S")
      .positive();
  app.add_flag("--standalone", options->standalone, "run on this host only");
  app.add_flag("--no-reform", options->no_reform, "restart all ranks after a failure (no in-place recovery)");
  app.add_flag("--no-python,--no_python", options->no_python, "run a .py file as a program");
  app.add_option("-m,--module", options->module, "run a Python module instead of a program");
  app.footer(
      "After the options: -- train RUN.toml …, a Python script, or any program. Ranks find RANK WORLD_SIZE\n"
      "LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT in their environment.");
}

}  // namespace esp::app
