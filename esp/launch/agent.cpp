#include "esp/launch/agent.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/net/address.h"
#include "esp/net/rendezvous.h"
#include "esp/net/socket.h"
#include "esp/net/store/hub.h"

namespace esp::launch {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(100);
// Behind the last host's end: the others' agents then have long said theirs.
constexpr Duration kLastWord = std::chrono::seconds(60);

std::string bracketed(const std::string& address) {
  return address.find(':') == std::string::npos ? address : "[" + address + "]";
}

// A port nobody has now, for a program that brings a store of its own.
int free_port(const std::string& address) {
  net::SocketAddress any = net::numeric_address(address, 0);
  net::Socket probe(::socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe || ::bind(probe.fd(), any.get(), any.length) != 0)
    throw CommError(CommError::Kind::refused, -1, fmt::format("cannot take a port on {}", address));
  return net::local_address(probe.fd()).port();
}

std::string random_name() {
  std::random_device random;
  return fmt::format("job-{:08x}{:08x}", random(), random());
}

// Where the ranks of a round meet.
struct Meeting {
  std::string address, store;
  int port = 0;
};

std::string text_of(const Meeting& meeting) {
  return Json{{"address", meeting.address}, {"store", meeting.store}, {"port", meeting.port}}.dump();
}
Meeting meeting_of(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at("address"), json.at("store"), json.at("port")};
}

std::string text_of(const RoundEnd& end) {
  return Json{{"node", end.node},
              {"exit_code", end.exit_code},
              {"rank", end.failure.rank},
              {"how", end.failure.how},
              {"last_words", end.failure.last_words}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}
RoundEnd round_end_of(const std::string& text) {
  const Json json = Json::parse(text);
  RoundEnd end{json.at("node"), json.at("exit_code"), {}};
  end.failure = {json.at("rank"), end.exit_code, json.at("how"), json.at("last_words")};
  return end;
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options) : options_(options) {
    if (options_.job.empty()) options_.job = random_name();
    if (options_.num_nodes == 1) {
      if (options_.secret.bytes().empty()) options_.secret = net::Secret::random();
      return;
    }
    net::RendezvousOptions meeting;
    meeting.rank = options_.node_rank;
    meeting.size = options_.num_nodes;
    meeting.endpoint = "tcp://" + options_.endpoint;
    meeting.host_hub = options_.node_rank == 0;
    meeting.secret = options_.secret;
    meeting.job = options_.job + "/agents";
    meeting.net = options_.net;
    meeting.log = options_.log;
    agents_ = net::rendezvous(meeting, Deadline::after(options_.meeting));
  }

  int run() {
    for (int round = 0;; ++round) {
      const std::vector<RoundEnd> ends = one_round(round);
      const RoundEnd& cause = cause_of(ends);
      if (cause.exit_code == 0 || cause.exit_code == static_cast<int>(ExitCode::requeue)) return cause.exit_code;
      const std::string told = describe(cause.failure);
      const bool killed = cause.exit_code > 128;
      const bool stopping = options_.signal && options_.signal() != 0;
      if (stopping || !worth_restarting(cause.exit_code) || round == options_.max_restarts)
        throw Error(killed ? ExitCode::comm : static_cast<ExitCode>(cause.exit_code), told);
      fmt::print(stderr, "{}\nstarting again, {} of at most {} times\n", told, round + 1, options_.max_restarts);
    }
  }

 private:
  std::string key(const char* what, int round, int node) const { return fmt::format("{}/{}/{}", what, round, node); }

  // The first host makes the round's hub and tells the others.
  Meeting meet(int round, std::unique_ptr<net::Hub>& hub) {
    if (options_.node_rank != 0)
      return meeting_of(agents_->store->get(key("round", round, 0), Deadline::after(options_.meeting)));
    net::HubOptions opening;
    opening.address = agents_ ? agents_->peers[0].address : "127.0.0.1";
    opening.size = options_.num_nodes * options_.per_node;
    opening.job = round_name(round);
    opening.secret = options_.secret;
    opening.log = options_.log;
    hub = std::make_unique<net::Hub>(opening);
    Meeting meeting{hub->address(), fmt::format("tcp://{}:{}", bracketed(hub->address()), hub->port()),
                    free_port(hub->address())};
    if (agents_) agents_->store->set(key("round", round, 0), text_of(meeting));
    return meeting;
  }

  std::string round_name(int round) const { return fmt::format("{}/round-{}", options_.job, round); }

  LocalOptions local_options(int round, const Meeting& meeting) const {
    LocalOptions local;
    local.num_ranks = options_.per_node;
    local.first_rank = options_.node_rank * options_.per_node;
    local.world = options_.num_nodes * options_.per_node;
    local.command = options_.command;
    local.master_address = meeting.address;
    local.master_port = meeting.port;
    local.secret = options_.secret;
    if (options_.node_rank == 0) local.plain_rank = 0;
    local.environment = options_.environment;
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
             {"ESPALIER_JOB", round_name(round)},
             {"ESPALIER_STORE", meeting.store},
             {"GROUP_RANK", std::to_string(options_.node_rank)},
             {"GROUP_WORLD_SIZE", std::to_string(options_.num_nodes)},
             {"TORCHELASTIC_RUN_ID", options_.job},
             {"TORCHELASTIC_RESTART_COUNT", std::to_string(round)},
             {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)}})
      local.environment[name] = value;
    return local;
  }

  std::vector<RoundEnd> one_round(int round) {
    std::unique_ptr<net::Hub> hub;  // outlives the ranks
    const Meeting meeting = meet(round, hub);
    LocalJob job(local_options(round, meeting));
    bool passed_on = false;
    std::optional<Deadline> patience;
    while (!job.wait(Deadline::after(kLook))) {
      if (const int asked = options_.signal ? options_.signal() : 0; asked != 0 && !passed_on) {
        job.signal(asked);
        passed_on = true;
      }
      check_agents();
      if (!patience && failed_elsewhere(round)) patience = Deadline::after(options_.patience);
      if (patience && patience->passed()) job.terminate();
    }
    RoundEnd end{options_.node_rank, job.wants_requeue() ? static_cast<int>(ExitCode::requeue) : 0, {}};
    if (auto failure = job.failure()) end = {options_.node_rank, failure->exit_code, *failure};
    if (!agents_) return {end};
    agents_->store->set(key("end", round, options_.node_rank), text_of(end));
    if (end.exit_code != 0) agents_->store->set(key("failed", round, 0), "");
    return all_ends(round);
  }

  bool failed_elsewhere(int round) const { return agents_ && agents_->store->try_get(key("failed", round, 0)); }

  // CommError names the host whose agent is gone.
  void check_agents() const {
    if (!agents_) return;
    for (int node = 0; node < options_.num_nodes; ++node)
      if (agents_->fate->lost(node))
        throw CommError(CommError::Kind::lost, -1,
                        fmt::format("the launcher of host {} ({}) is gone, and its ranks with it", node,
                                    agents_->peers[static_cast<size_t>(node)].host));
  }

  std::vector<RoundEnd> all_ends(int round) {
    std::vector<RoundEnd> ends;
    std::optional<Deadline> last;
    for (int node = 0; node < options_.num_nodes;) {
      if (auto text = agents_->store->try_get(key("end", round, node))) {
        ends.push_back(round_end_of(*text));
        ++node;
        continue;
      }
      check_agents();
      // A host whose ranks still work is waited for; once something failed, it must end soon.
      if (!last && failed_elsewhere(round)) last = Deadline::after(options_.patience + kLastWord);
      if (last && last->passed())
        throw CommError(CommError::Kind::timeout, -1, fmt::format("host {} does not end its ranks", node));
      ::usleep(20000);
    }
    return ends;
  }

  AgentOptions options_;
  std::unique_ptr<net::World> agents_;  // null on a single host
};

// As among the ranks of one host: a signal tells more than an error, an error more than «a peer was lost».
int suspicion(const RoundEnd& end) {
  if (end.exit_code == 0) return 0;
  if (end.exit_code == static_cast<int>(ExitCode::requeue)) return 1;
  if (end.exit_code == static_cast<int>(ExitCode::comm)) return 2;
  return end.exit_code > 128 ? 4 : 3;
}

}  // namespace

bool worth_restarting(int exit_code) {
  constexpr int kCannotRun = 126, kNoSuchProgram = 127;
  return exit_code != static_cast<int>(ExitCode::usage) && exit_code != static_cast<int>(ExitCode::files) &&
         exit_code != kCannotRun && exit_code != kNoSuchProgram;
}

const RoundEnd& cause_of(const std::vector<RoundEnd>& ends) {
  const RoundEnd* cause = &ends.front();
  for (const RoundEnd& end : ends)
    if (suspicion(end) > suspicion(*cause)) cause = &end;
  return *cause;
}

int run_agent(const AgentOptions& options) {
  if (options.num_nodes < 1 || options.per_node < 1)
    throw UsageError(
        fmt::format("{} hosts of {} ranks; at least one of each is wanted", options.num_nodes, options.per_node));
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes)
    throw UsageError(
        fmt::format("--node-rank {}: hosts are numbered 0 to {}", options.node_rank, options.num_nodes - 1));
  if (options.command.empty()) throw UsageError("nothing to launch: give a command behind --");
  if (options.num_nodes > 1 && options.endpoint.empty())
    throw UsageError("several hosts need --rdzv-endpoint HOST:PORT, the first host's address and a free port");
  if (options.num_nodes > 1 && options.job.empty())
    throw UsageError("several hosts need the same --rdzv-id NAME on each, so that two jobs never mix");
  if (options.num_nodes > 1 && options.secret.bytes().empty())
    throw UsageError(
        "several hosts need a shared secret: --secret-file FILE (or ESPALIER_SECRET_FILE), the same 0600 file on each; "
        "`head -c 32 /dev/urandom | base64` makes one");
  return Agent(options).run();
}

}  // namespace esp::launch
