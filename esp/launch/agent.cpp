#include "esp/launch/agent.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/exit_code.h"
#include "esp/base/json.h"
#include "esp/launch/elastic.h"
#include "esp/launch/elastic_rendezvous.h"
#include "esp/launch/in_place_restart.h"
#include "esp/launch/message.h"
#include "esp/net/address.h"
#include "esp/net/crypto.h"
#include "esp/net/link.h"
#include "esp/net/rendezvous.h"
#include "esp/net/socket.h"
#include "esp/net/store/hub.h"

namespace esp::launch {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(100);
// After a failure, how long collect_results waits for the other hosts to report their result of the round.
constexpr Duration kResultTimeout = std::chrono::seconds(60);

std::string bracketed(const std::string& address) {
  return address.find(':') == std::string::npos ? address : "[" + address + "]";
}

// Returns a port that is free now. It becomes MASTER_PORT, for programs that run their own key-value store.
int free_port(const std::string& address) {
  net::SocketAddress any = net::numeric_address(address, 0);
  net::Socket probe(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe || ::bind(probe.fd(), any.get(), any.length) != 0)
    throw CommError(CommError::Kind::refused, -1, fmt::format("{}: cannot bind a port for MASTER_PORT", address));
  return net::local_address(probe.fd()).port();
}

std::string random_name() {
  std::random_device random;
  return fmt::format("job-{:08x}{:08x}", random(), random());
}

constexpr std::string_view kMessage = "a message from the launcher of another host";

// The rendezvous endpoint of the ranks in one round.
struct RoundEndpoint {
  std::string address, store;
  int port = 0;
};

std::string encode(const RoundEndpoint& endpoint) {
  return Json{{"address", endpoint.address}, {"store", endpoint.store}, {"port", endpoint.port}}.dump();
}
RoundEndpoint parse_endpoint(const std::string& text) {
  return read_message(text, kMessage, [](const Json& json) {
    return RoundEndpoint{json.at("address"), json.at("store"), int_of(json.at("port"))};
  });
}

std::string encode(const RoundResult& end) {
  return Json{{"node", end.node},
              {"exit_code", end.exit_code},
              {"rank", end.failure.rank},
              {"how", end.failure.reason},
              {"last_words", end.failure.stderr_tail},
              {"stuck_at_step", end.stuck_at_step.value_or(-1)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}
RoundResult parse_round_result(const std::string& text) {
  return read_message(text, kMessage, [](const Json& json) {
    RoundResult end{int_of(json.at("node")), int_of(json.at("exit_code")), {}};
    end.failure = {int_of(json.at("rank")), end.exit_code, json.at("how"), json.at("last_words"), false};
    if (const int64_t step = integer_of(json.at("stuck_at_step")); step >= 0) end.stuck_at_step = step;
    return end;
  });
}

// Derives the job name from the secret. All hosts with the same secret compute the same name, and a process without the
// secret cannot guess it.
std::string job_name_from(const net::Secret& secret) {
  return "job-" + net::to_hex(net::hkdf_sha256(secret.bytes(), "", "espalier job name").substr(0, 8));
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options, std::function<bool()> change_requested = {}, int num_restarts = 0)
      : options_(options), change_requested_(std::move(change_requested)), num_restarts_(num_restarts) {
    if (options_.job.empty()) options_.job = random_name();
    if (options_.num_nodes == 1) {
      if (options_.secret.bytes().empty()) options_.secret = net::Secret::random();
      return;
    }
    net::RendezvousOptions rendezvous;
    rendezvous.rank = options_.node_rank;
    rendezvous.size = options_.num_nodes;
    rendezvous.endpoint = "tcp://" + options_.endpoint;
    rendezvous.host_hub = options_.node_rank == 0;
    rendezvous.secret = options_.secret;
    rendezvous.job = options_.job + "/agents";
    rendezvous.net = options_.net;
    rendezvous.log = options_.log;
    rendezvous.member = "host";
    rendezvous.timeout_option = "--rdzv-timeout";
    agents_ = net::rendezvous(rendezvous, Deadline::after(options_.net.start_timeout));
  }

  int run() {
    for (;; ++round_, ++num_restarts_) {
      const std::vector<RoundResult> ends = run_round();
      RoundResult cause = root_cause(ends);
      cause.failure.already_printed = cause.node == options_.node_rank;
      NextAction then = next_action(cause, stopping(), num_restarts_, options_.max_restarts);
      if (then == NextAction::finish) return cause.exit_code;
      std::string message = describe(cause.failure);
      for (const RoundResult& end : ends)
        if (end.stuck_at_step) {
          then = NextAction::fail;
          message += fmt::format("\n{} consecutive restarts made no progress beyond step {}; the job ends",
                                 kMaxRestartsWithoutStep, *end.stuck_at_step);
        }
      const bool killed = cause.exit_code > 128;
      if (then == NextAction::fail)
        throw Error(killed ? ExitCode::comm : static_cast<ExitCode>(cause.exit_code), message);
      fmt::print(stderr, "{}\nrestarting all ranks, restart {} of at most {}\n", message, num_restarts_ + 1,
                 options_.max_restarts);
      if (options_.on_restart) options_.on_restart();
    }
  }

  std::vector<int> lost_nodes() const {
    std::vector<int> lost;
    for (int node = 0; agents_ && node < options_.num_nodes; ++node)
      if (agents_->peer_status->is_lost(node)) lost.push_back(node);
    return lost;
  }
  int num_restarts() const { return num_restarts_; }

 private:
  std::string key(const char* what, int round, int node) const { return fmt::format("{}/{}/{}", what, round, node); }

  // Host 0 creates the hub of this round and publishes its endpoint. The other hosts read the endpoint.
  RoundEndpoint open_round(int round, std::unique_ptr<net::Hub>& hub) {
    if (options_.node_rank != 0)
      return parse_endpoint(
          wait_for_first_host([&](Deadline deadline) { return agents_->store->get(key("round", round, 0), deadline); },
                              options_.net.start_timeout));
    net::HubOptions opening;
    opening.address = agents_ ? agents_->peers[0].address : "127.0.0.1";
    opening.size = options_.num_nodes * options_.per_node;
    opening.job = round_name(round);
    opening.secret = options_.secret;
    opening.link_timeout = options_.net.link_timeout;
    opening.log = options_.log;
    hub = std::make_unique<net::Hub>(opening);
    RoundEndpoint endpoint{hub->address(), fmt::format("tcp://{}:{}", bracketed(hub->address()), hub->port()),
                           free_port(hub->address())};
    if (agents_) agents_->store->set(key("round", round, 0), encode(endpoint));
    return endpoint;
  }

  std::string round_name(int round) const { return fmt::format("{}/round-{}", options_.job, round); }

  LocalOptions local_options(int round, const RoundEndpoint& endpoint) const {
    LocalOptions local;
    local.num_ranks = options_.per_node;
    local.first_rank = options_.node_rank * options_.per_node;
    local.world = options_.num_nodes * options_.per_node;
    local.command = options_.command;
    local.master_address = endpoint.address;
    local.master_port = endpoint.port;
    local.secret = options_.secret;
    if (options_.node_rank == 0) local.plain_rank = 0;
    local.plain_stdout = options_.plain_stdout;
    local.grace = options_.grace;
    local.keep_survivors = in_place();
    local.environment = options_.environment;
    for (const auto& [name, value] : variables_of(round, endpoint)) local.environment[name] = value;
    return local;
  }

  Environment variables_of(int round, const RoundEndpoint& endpoint) const {
    return {{"ESPALIER_JOB", round_name(round)},
            {"ESPALIER_STORE", endpoint.store},
            {"ESPALIER_ROUND", std::to_string(round)},
            {"MASTER_PORT", std::to_string(endpoint.port)},
            {"GROUP_RANK", std::to_string(options_.node_rank)},
            {"GROUP_WORLD_SIZE", std::to_string(options_.num_nodes)},
            {"TORCHELASTIC_RUN_ID", options_.job},
            {"TORCHELASTIC_RESTART_COUNT", std::to_string(num_restarts_)},
            {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)}};
  }

  bool in_place() const { return options_.in_place && options_.num_nodes == 1 && options_.max_restarts > 0; }
  bool stopping() const { return options_.signal && options_.signal() != 0; }

  // Handles ranks that ended: starts replacements in place, or ends all ranks.
  void handle_failures(LocalJob& job, InPlaceRestart& restart, bool& given_up) {
    // take_failures() is called before take_messages(), so that `messages` includes everything a rank sent before it
    // failed.
    const auto failures = job.take_failures();
    const auto messages = job.take_messages();
    if (given_up) return;
    const InPlaceRestart::Decision decision = restart.poll(messages, failures, stopping());
    given_up = decision != InPlaceRestart::Decision::proceed;
    if (!given_up) return;
    // Tells all ranks that there is no next round. Ranks that wait for one then end with their own error; the others
    // are killed or terminated below.
    for (int rank = 0; rank < options_.per_node; ++rank) job.send(rank, encode(NextRound{false, 0, "", ""}));
    const bool again =
        decision == InPlaceRestart::Decision::restart_all && num_restarts_ < options_.max_restarts && !stuck_at_step_;
    if (again) {
      fmt::print(stderr, "cannot recover in place: {}\n", *restart.give_up_reason());
      job.kill();
    } else {
      job.terminate();
    }
  }

  // `hub` serves the current round and `next` the round being formed. When the ranks have connected to `next`, it
  // replaces `hub`, which closes.
  InPlaceRestart make_in_place_restart(LocalJob& job, std::unique_ptr<net::Hub>& hub, std::unique_ptr<net::Hub>& next) {
    InPlaceRestart::Options options;
    options.num_ranks = options_.per_node;
    options.round = round_;
    options.timeout = options_.in_place_timeout;
    options.open_round = [this, &next](int round) {
      const RoundEndpoint endpoint = open_round(round, next);
      return InPlaceRestart::RoundSetup{{true, round, round_name(round), endpoint.store},
                                        variables_of(round, endpoint)};
    };
    options.may_restart = [this] {
      if (num_restarts_ >= options_.max_restarts || !check_progress()) return false;
      if (options_.on_restart) options_.on_restart();
      return ++num_restarts_ > 0;
    };
    options.print_line = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
    options.on_connected = [&hub, &next] { hub = std::move(next); };
    return InPlaceRestart(job, options);
  }

  std::vector<RoundResult> run_round() {
    const int round = round_;
    std::unique_ptr<net::Hub> hub, next;  // declared before the job, because the hubs must outlive the ranks
    const RoundEndpoint endpoint = open_round(round, hub);
    LocalJob job(local_options(round, endpoint));
    InPlaceRestart restart = make_in_place_restart(job, hub, next);
    bool passed_on = false, given_up = false;
    std::optional<Deadline> stop_deadline;
    while (!job.ended()) {
      if (in_place()) {
        job.wait_event(Deadline::after(kPollInterval));
        handle_failures(job, restart, given_up);
      } else {
        job.wait(Deadline::after(kPollInterval));
      }
      if (const int asked = options_.signal ? options_.signal() : 0; asked != 0 && !passed_on) {
        job.signal(asked);
        passed_on = true;
      }
      if (!passed_on && change_requested_ && change_requested_()) {
        job.signal(SIGTERM);
        passed_on = true;
      }
      check_agents();
      if (!stop_deadline && failed_elsewhere(round)) stop_deadline = Deadline::after(options_.stop_timeout);
      if (stop_deadline && stop_deadline->passed()) job.terminate();
    }
    if (in_place()) round_ = restart.round() + 1;  // restarts in place have advanced the round number
    RoundResult end = make_round_result(options_.node_rank, job.wants_requeue(), job.failure(), restart);
    if (end.exit_code != 0 && !stuck_at_step_) check_progress();
    end.stuck_at_step = stuck_at_step_;
    if (!agents_) return {end};
    agents_->store->set(key("end", round, options_.node_rank), encode(end));
    if (end.exit_code != 0) agents_->store->set(key("failed", round, 0), "");
    return collect_results(round);
  }

  // Called before each restart. Returns false if the last kMaxRestartsWithoutStep restarts did not reach a higher step.
  bool check_progress() {
    // only host 0 knows the step, because it runs rank 0
    if (!options_.highest_step || options_.node_rank != 0) return true;
    const int64_t step = options_.highest_step();
    const bool higher = !highest_step_ || step > *highest_step_;
    restarts_without_step_ = higher ? 0 : restarts_without_step_ + 1;
    if (higher) highest_step_ = step;
    if (restarts_without_step_ >= kMaxRestartsWithoutStep) stuck_at_step_ = std::max<int64_t>(0, *highest_step_);
    return !stuck_at_step_;
  }

  bool failed_elsewhere(int round) const { return agents_ && agents_->store->try_get(key("failed", round, 0)); }

  // Throws a CommError if the agent of a host is lost; the message names the host.
  void check_agents() const {
    if (!agents_) return;
    for (int node = 0; node < options_.num_nodes; ++node)
      if (agents_->peer_status->is_lost(node))
        throw CommError(CommError::Kind::lost, -1,
                        fmt::format("the launcher of host {} ({}) {}; its ranks have ended too", node,
                                    net::host_name(agents_->peers[static_cast<size_t>(node)].host),
                                    agents_->peer_status->loss_reason(node)));
  }

  std::vector<RoundResult> collect_results(int round) {
    std::vector<RoundResult> ends;
    std::optional<Deadline> last;
    for (int node = 0; node < options_.num_nodes;) {
      if (auto text = agents_->store->try_get(key("end", round, node))) {
        ends.push_back(parse_round_result(*text));
        ++node;
        continue;
      }
      check_agents();
      // Without a failure, the other hosts may take any time to finish their ranks. After a failure their ranks must
      // end soon.
      if (!last && failed_elsewhere(round)) last = Deadline::after(options_.stop_timeout + kResultTimeout);
      if (last && last->passed())
        throw CommError(CommError::Kind::timeout, -1,
                        fmt::format("host {} ({}): its ranks did not end in time after a failure", node,
                                    net::host_name(agents_->peers[static_cast<size_t>(node)].host)));
      ::usleep(20000);
    }
    return ends;
  }

  AgentOptions options_;
  std::unique_ptr<net::World> agents_;      // connection between the agents of all hosts; null on a single host
  std::function<bool()> change_requested_;  // null: the set of hosts is fixed
  int round_ = 0, num_restarts_ = 0;        // both are equal on every host
  std::optional<int64_t> highest_step_;     // highest step reached before the last restart
  int restarts_without_step_ = 0;
  std::optional<int64_t> stuck_at_step_;  // the highest step reached; set when restarts make no progress
};

// Ranks the results of a round: the result with the highest priority is the most likely root cause. Order: death by a
// signal, error exit, lost peer. failure_priority in local.cpp uses the same order for the ranks of one host.
int failure_priority(const RoundResult& end) {
  if (end.exit_code == 0) return 0;
  if (end.exit_code == static_cast<int>(ExitCode::requeue)) return 1;
  if (end.exit_code == static_cast<int>(ExitCode::comm)) return 2;
  return end.exit_code > 128 ? 4 : 3;
}

}  // namespace

bool worth_restarting(int exit_code) {
  constexpr int kCannotRun = 126, kNoSuchProgram = 127;
  return exit_code != static_cast<int>(ExitCode::usage) && exit_code != static_cast<int>(ExitCode::files) &&
         exit_code != static_cast<int>(kExitTraining) && exit_code != kCannotRun && exit_code != kNoSuchProgram;
}

RoundResult make_round_result(int node, bool wants_requeue, std::optional<Failure> failure,
                              const InPlaceRestart& restart) {
  RoundResult end{node, wants_requeue ? static_cast<int>(ExitCode::requeue) : 0, {}};
  // A failure that would repeat after a restart is reported as the cause, even if an earlier rank was killed and
  // replaced.
  const std::optional<Failure>& fatal_failure = restart.fatal_failure();
  if (fatal_failure && (!failure || !worth_restarting(fatal_failure->exit_code))) failure = fatal_failure;
  if (failure) end = {node, failure->exit_code, *failure};
  // The ranks lost their connections to each other, but no rank failed by itself before the launcher ended all of them.
  if (end.exit_code == 0 && restart.give_up_reason()) {
    const int code = static_cast<int>(ExitCode::comm);
    end = {node, code, {0, code, fmt::format("lost its peers: {}", *restart.give_up_reason()), "", false}};
  }
  return end;
}

NextAction next_action(const RoundResult& cause, bool stopping, int num_restarts, int max_restarts) {
  if (cause.exit_code == 0 || cause.exit_code == static_cast<int>(ExitCode::requeue)) return NextAction::finish;
  return stopping || !worth_restarting(cause.exit_code) || num_restarts >= max_restarts ? NextAction::fail
                                                                                        : NextAction::restart;
}

const RoundResult& root_cause(const std::vector<RoundResult>& ends) {
  const RoundResult* cause = &ends.front();
  for (const RoundResult& end : ends)
    if (failure_priority(end) > failure_priority(*cause)) cause = &end;
  return *cause;
}

EpochResult run_epoch(const AgentOptions& options, const std::function<bool()>& change_requested, int& num_restarts) {
  Agent agent(options, change_requested, num_restarts);
  try {
    const int code = agent.run();
    num_restarts = agent.num_restarts();
    if (code == static_cast<int>(ExitCode::requeue) && change_requested()) return {};
    return {code, {}};
  } catch (const CommError&) {
    num_restarts = agent.num_restarts();
    EpochResult end{std::nullopt, agent.lost_nodes()};
    if (end.lost.empty()) throw;
    return end;
  }
}

int run_agent(const AgentOptions& options) {
  if (options.num_nodes < 1 || options.per_node < 1)
    throw UsageError(fmt::format("launch: got {} hosts, {} ranks per host; expected at least 1 host, 1 rank per host",
                                 options.num_nodes, options.per_node));
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes)
    throw UsageError(fmt::format("--node-rank: got {}; expected 0 to {}", options.node_rank, options.num_nodes - 1));
  if (options.command.empty())
    throw UsageError("nothing to launch: give a command after --, for example -- train RUN.toml");
  if (options.num_nodes > 1 && options.endpoint.empty())
    throw UsageError(
        fmt::format("--rdzv-endpoint: not set for {} hosts; expected HOST:PORT, the address of host 0 and a free port",
                    options.num_nodes));
  if (options.num_nodes > 1 && options.secret.bytes().empty())
    throw UsageError(
        fmt::format("--secret-file: not set for {} hosts; expected the same 0600 file on each host (or set "
                    "ESPALIER_SECRET_FILE). `head -c 32 /dev/urandom | base64` creates a secret",
                    options.num_nodes));
  AgentOptions named = options;
  if (options.num_nodes > 1 && options.job.empty()) named.job = job_name_from(options.secret);
  if (options.min_nodes > 0) return run_elastic(named);
  return Agent(named).run();
}

}  // namespace esp::launch
