// espalier launch: this host's ranks of a job on one host or many, started together, restarted when one fails. The
// flags and the variables exported are torchrun's, so that it starts `espalier train` as well as a PyTorch script.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/command.h"
#include "apps/espalier/hygiene.h"
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
#include "esp/train/signals.h"

namespace esp::app {
namespace {

struct LaunchOptions {
  std::string nnodes = "1", nproc = "1", endpoint, job, secret_file, bind, master_address, module;
  int node_rank = 0, max_restarts = 3, master_port = 29400;
  double start_timeout_s = 0, link_timeout_s = 0;  // 0: as the run file says
  bool standalone = false, no_python = false, no_reform = false, encrypt = false;
  const Chosen* chosen = nullptr;
};

constexpr int kDefaultPort = 29400;

int count_of(const std::string& text, const char* flag) {
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

// "4", or "2:4" of a job whose hosts may come and go.
void count_hosts(const std::string& text, launch::AgentOptions& agent) {
  const size_t colon = text.find(':');
  agent.num_nodes = count_of(colon == std::string::npos ? text : text.substr(colon + 1), "--nnodes");
  if (colon == std::string::npos) return;
  agent.least_nodes = count_of(text.substr(0, colon), "--nnodes");
  if (agent.least_nodes > agent.num_nodes)
    throw UsageError(fmt::format("--nnodes {}: the least number of hosts comes first, then the most", text));
}

bool is_own(const std::string& word) {
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

Arguments command_named(const Chosen& chosen, const std::string& name) {
  for (const Arguments& command : chosen.root.subcommands())
    if (command.name() == name) return command;
  ESP_CHECK(false, "there is no command {}", name);
}

// The command line with options of launch, given behind `words`, before them: train has no such options.
struct Reordered {
  std::string text, moved;  // moved: the first such option, empty where there is none
};
Reordered reordered(const Chosen& chosen, const std::vector<std::string>& words) {
  const Arguments launch = command_named(chosen, "launch"), train = command_named(chosen, "train");
  std::vector<std::string> ahead = {"espalier", "launch"}, behind = {"--", "train"};
  ahead.insert(ahead.end(), chosen.ahead.begin(), chosen.ahead.end());
  Reordered result;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!names_option(launch, words[i]) || names_option(train, words[i])) {
      behind.push_back(words[i]);
      continue;
    }
    if (result.moved.empty()) result.moved = words[i];
    ahead.push_back(words[i]);
    for (const OptionText& option : launch.options())
      if (option.takes_value && i + 1 < words.size() &&
          std::find(option.names.begin(), option.names.end(), words[i]) != option.names.end()) {
        ahead.push_back(words[++i]);
        break;
      }
  }
  result.text = fmt::format("{} {}", fmt::join(ahead, " "), fmt::join(behind, " "));
  return result;
}

// Of the two that could say how many ranks there are, launch does.
void refuse_nproc(const std::vector<std::string>& words, const std::string& per_node) {
  for (const std::string& word : words)
    if (words.front() == "train" && (word == "--nproc" || word.starts_with("--nproc=")))
      throw UsageError(
          fmt::format("launch starts the ranks, {} on each host: leave --nproc of train out, and give "
                      "--nproc-per-node to launch",
                      per_node));
}

// `train …` is ours; a .py file or -m goes to Python; anything else is a program.
std::vector<std::string> command_of(const LaunchOptions& options) {
  std::vector<std::string> words = options.chosen->behind;
  if (!options.module.empty()) words.insert(words.begin(), {"python3", "-u", "-m", options.module});
  if (words.empty())
    throw UsageError("launch: nothing to launch; for example `espalier launch --nproc-per-node 2 -- train RUN.toml`");
  if (!options.module.empty()) return words;
  if (std::filesystem::path(words.front()).extension() == ".toml") {
    throw UsageError(fmt::format("launch: got the run file {}; expected a command. Use `{}`", words.front(),
                                 reordered(*options.chosen, words).text));
  }
  if (words.front() == "train") {
    const Reordered meant = reordered(*options.chosen, {words.begin() + 1, words.end()});
    if (!meant.moved.empty())
      throw UsageError(fmt::format("{}: got an option of launch behind train; expected it before. Use `{}`",
                                   meant.moved, meant.text));
  }
  if (is_own(words.front())) {
    refuse_nproc(words, options.nproc);
    words.insert(words.begin(), own_path());
  } else if (!options.no_python && std::filesystem::path(words.front()).extension() == ".py") {
    words.insert(words.begin(), {"python3", "-u"});
  }
  return words;
}

std::string endpoint_of(const LaunchOptions& options) {
  if (!options.endpoint.empty())
    return options.endpoint.find(':') == std::string::npos ? fmt::format("{}:{}", options.endpoint, kDefaultPort)
                                                           : options.endpoint;
  if (options.master_address.empty()) return "";
  return fmt::format("{}:{}", options.master_address, options.master_port);
}

// For snapshots; where there is no such place, runs do without.
void lend_folder(launch::AgentOptions& agent, std::optional<launch::MemoryFolder>& folder) {
  try {
    agent.environment["ESPALIER_SNAPSHOTS"] = folder.emplace().path();
  } catch (const IoError& error) {
    agent.log.warn("{}: no snapshots in memory", error.what());
  }
}

// What `train` takes for its run file among its words; empty: it says itself what is missing.
std::string run_file_among(const std::vector<std::string>& words, const Arguments& root) {
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

// The run file as it is now, for all ranks of the job; nothing where there is none to be read: the ranks say why.
void copy_run_file(launch::AgentOptions& agent, const LaunchOptions& options, std::optional<RunFileCopy>& copy) {
  const std::string path = run_file_among(options.chosen->behind, options.chosen->root);
  std::error_code error;
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) return;
  copy.emplace(path, obs::read_whole_file(path, train::kMaxRunFileBytes));
  agent.environment[RunFileCopy::kVariable] = copy->variable();
  agent.restarting = [&copy, path] {
    if (copy->is_outdated())
      fmt::print(stderr, "{} was changed since the job began: ranks go on with the values it began with\n", path);
  };
}

// A mistake in our own run file is told here, once. On several hosts the ranks tell it: a host that gave up by itself
// would leave the others waiting.
void check_command(const launch::AgentOptions& agent, std::vector<std::string> words) {
  if (agent.num_nodes > 1 || agent.per_node == 1 || words.empty() || words.front() != "train") return;
  for (const char* answered : {"--help", "-h", "--keys"})
    if (std::find(words.begin(), words.end(), answered) != words.end()) return;
  words.insert(words.end(), {"--check-ranks", std::to_string(agent.per_node)});
  run_words(words);
}

// What the run file says about waiting, where the command is `train RUN.toml` and the file can be read: what is wrong
// with it the ranks tell.
train::CommSection timeouts_of(const std::vector<std::string>& words) {
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

// The launchers' waits, and the ranks' where a flag overrides the run file.
void set_timeouts(const LaunchOptions& options, launch::AgentOptions& agent) {
  const train::CommSection section = timeouts_of(options.chosen->behind);
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
    throw UsageError(
        fmt::format("--standalone: got --nnodes {} too; expected one of the two. Leave one out", options.nnodes));
  if (!options.standalone) count_hosts(options.nnodes, agent);
  agent.per_node = count_of(options.nproc, "--nproc-per-node");
  agent.node_rank = options.node_rank;
  agent.endpoint = endpoint_of(options);
  agent.job = options.job;
  agent.max_restarts = options.max_restarts;
  agent.command = command_of(options);
  std::optional<RunFileCopy> copy;
  if (options.module.empty()) copy_run_file(agent, options, copy);
  if (options.module.empty()) check_command(agent, options.chosen->behind);
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
  // As torchrun does: ranks that share cores do not each take all of them, unless the user has said otherwise.
  if (agent.per_node > 1 && !environment.contains("OMP_NUM_THREADS")) agent.environment["OMP_NUM_THREADS"] = "1";
  // Our own ranks know how to go on without one that was lost; a program of another kind gets the time it is used to.
  std::optional<launch::MemoryFolder> snapshots;
  agent.plain_stdout = !options.chosen->behind.empty() && options.chosen->behind.front() == "train";
  if (agent.max_restarts > 0 && is_own(options.chosen->behind.empty() ? "" : options.chosen->behind.front())) {
    agent.in_place = !options.no_reform && agent.per_node > 1;
    agent.grace = std::chrono::milliseconds(100);
    lend_folder(agent, snapshots);
    if (snapshots && agent.plain_stdout)
      agent.highest_step = [path = snapshots->path()] { return train::highest_step(path); };
  }
  const train::StopSignals signals;
  agent.signal = [&signals] { return signals.received(); };
  return launch::run_agent(agent);
}

}  // namespace

void define_launch(const Arguments& app, Chosen& chosen) {
  auto options = keep<LaunchOptions>(app, chosen, run_launch);
  options->chosen = &chosen;
  app.add_option("--nnodes", options->nnodes, "hosts of the job, or MIN:MAX: they may come and go").show_default();
  app.add_option("--nproc-per-node,--nproc_per_node", options->nproc, "ranks on each host, or auto: one per core")
      .show_default();
  app.add_option("--node-rank,--node_rank", options->node_rank, "number of this host, from 0")
      .show_default()
      .non_negative();
  app.add_option("--rdzv-endpoint,--rdzv_endpoint", options->endpoint, "where host 0 listens and the others call")
      .type_name("HOST:PORT");
  app.add_option("--master-addr,--master_addr", options->master_address, "the same, as two").type_name("HOST");
  app.add_option("--master-port,--master_port", options->master_port, "with --master-addr: its port")
      .show_default()
      .within(1, 65535);
  app.add_option("--rdzv-id,--rdzv_id", options->job, "name of the job, the same on every host [by the secret]")
      .type_name("NAME");
  app.add_option("--secret-file", options->secret_file,
                 "file of mode 0600 with the job's secret, the same on every host")
      .type_name("FILE");
  app.add_flag("--encrypt", options->encrypt, "encrypt what ranks send each other over tcp");
  app.add_option("--bind", options->bind, "interface, address or CIDR to listen on; any: all of them");
  app.add_option("--max-restarts,--max_restarts", options->max_restarts,
                 "restarts after failures; 0: none, and no snapshots in memory")
      .show_default()
      .non_negative();
  app.add_option("--rdzv-timeout,--rdzv_timeout", options->start_timeout_s,
                 "seconds to wait for the other hosts and ranks [comm.start_timeout_s, 600]")
      .type_name("S")
      .positive();
  app.add_option("--link-timeout", options->link_timeout_s,
                 "seconds without data after which a host is lost [comm.link_timeout_s, 30]")
      .type_name("S")
      .positive();
  app.add_flag("--standalone", options->standalone, "this host alone");
  app.add_flag("--no-reform", options->no_reform, "when a rank fails, all are started again");
  app.add_flag("--no-python,--no_python", options->no_python, "run a .py file as a program");
  app.add_option("-m,--module", options->module, "a Python module instead of a program");
  app.footer(
      "Behind the options: -- train RUN.toml …, a Python script, or any program. Ranks find RANK WORLD_SIZE\n"
      "LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT in their environment.");
}

}  // namespace esp::app
