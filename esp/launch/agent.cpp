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
#include "esp/launch/lobby.h"
#include "esp/launch/message.h"
#include "esp/launch/reform.h"
#include "esp/net/address.h"
#include "esp/net/crypto.h"
#include "esp/net/link.h"
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

constexpr std::string_view kMessage = "a message of another host's launcher";

// Where the ranks of a round meet.
struct Meeting {
  std::string address, store;
  int port = 0;
};

std::string text_of(const Meeting& meeting) {
  return Json{{"address", meeting.address}, {"store", meeting.store}, {"port", meeting.port}}.dump();
}
Meeting meeting_of(const std::string& text) {
  return read_message(text, kMessage, [](const Json& json) {
    return Meeting{json.at("address"), json.at("store"), int_of(json.at("port"))};
  });
}

std::string text_of(const RoundEnd& end) {
  return Json{{"node", end.node},
              {"exit_code", end.exit_code},
              {"rank", end.failure.rank},
              {"how", end.failure.how},
              {"last_words", end.failure.last_words},
              {"stuck_at_step", end.stuck_at_step.value_or(-1)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}
RoundEnd round_end_of(const std::string& text) {
  return read_message(text, kMessage, [](const Json& json) {
    RoundEnd end{int_of(json.at("node")), int_of(json.at("exit_code")), {}};
    end.failure = {int_of(json.at("rank")), end.exit_code, json.at("how"), json.at("last_words"), false};
    if (const int64_t step = integer_of(json.at("stuck_at_step")); step >= 0) end.stuck_at_step = step;
    return end;
  });
}

// The same on every host that has the secret, and nobody else's guess.
std::string name_by(const net::Secret& secret) {
  return "job-" + net::to_hex(net::hkdf_sha256(secret.bytes(), "", "espalier job name").substr(0, 8));
}

class Agent {
 public:
  explicit Agent(const AgentOptions& options, std::function<bool()> change_is_due = {}, int num_restarts = 0)
      : options_(options), change_is_due_(std::move(change_is_due)), num_restarts_(num_restarts) {
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
    meeting.member = "host";
    meeting.timeout_option = "--rdzv-timeout";
    agents_ = net::rendezvous(meeting, Deadline::after(options_.net.start_timeout));
  }

  int run() {
    for (;; ++round_, ++num_restarts_) {
      const std::vector<RoundEnd> ends = one_round();
      RoundEnd cause = cause_of(ends);
      cause.failure.shown = cause.node == options_.node_rank;
      Then then = after_round(cause, stopping(), num_restarts_, options_.max_restarts);
      if (then == Then::ended) return cause.exit_code;
      std::string told = describe(cause.failure);
      for (const RoundEnd& end : ends)
        if (end.stuck_at_step) {
          then = Then::failed;
          told += fmt::format("\n{} restarts in a row made no step beyond step {}: the job ends",
                              kMaxRestartsWithoutStep, *end.stuck_at_step);
        }
      const bool killed = cause.exit_code > 128;
      if (then == Then::failed) throw Error(killed ? ExitCode::comm : static_cast<ExitCode>(cause.exit_code), told);
      fmt::print(stderr, "{}\nrestarting all ranks, restart {} of at most {}\n", told, num_restarts_ + 1,
                 options_.max_restarts);
      if (options_.restarting) options_.restarting();
    }
  }

  std::vector<int> lost_nodes() const {
    std::vector<int> lost;
    for (int node = 0; agents_ && node < options_.num_nodes; ++node)
      if (agents_->fate->lost(node)) lost.push_back(node);
    return lost;
  }
  int num_restarts() const { return num_restarts_; }

 private:
  std::string key(const char* what, int round, int node) const { return fmt::format("{}/{}/{}", what, round, node); }

  // The first host makes the round's hub and tells the others.
  Meeting meet(int round, std::unique_ptr<net::Hub>& hub) {
    if (options_.node_rank != 0)
      return meeting_of(
          word_of_first_host([&](Deadline deadline) { return agents_->store->get(key("round", round, 0), deadline); },
                             options_.net.start_timeout));
    net::HubOptions opening;
    opening.address = agents_ ? agents_->peers[0].address : "127.0.0.1";
    opening.size = options_.num_nodes * options_.per_node;
    opening.job = round_name(round);
    opening.secret = options_.secret;
    opening.link_timeout = options_.net.link_timeout;
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
    local.plain_stdout = options_.plain_stdout;
    local.grace = options_.grace;
    local.outlast = in_place();
    local.environment = options_.environment;
    for (const auto& [name, value] : variables_of(round, meeting)) local.environment[name] = value;
    return local;
  }

  Environment variables_of(int round, const Meeting& meeting) const {
    return {{"ESPALIER_JOB", round_name(round)},
            {"ESPALIER_STORE", meeting.store},
            {"ESPALIER_ROUND", std::to_string(round)},
            {"MASTER_PORT", std::to_string(meeting.port)},
            {"GROUP_RANK", std::to_string(options_.node_rank)},
            {"GROUP_WORLD_SIZE", std::to_string(options_.num_nodes)},
            {"TORCHELASTIC_RUN_ID", options_.job},
            {"TORCHELASTIC_RESTART_COUNT", std::to_string(num_restarts_)},
            {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)}};
  }

  bool in_place() const { return options_.in_place && options_.num_nodes == 1 && options_.max_restarts > 0; }
  bool stopping() const { return options_.signal && options_.signal() != 0; }

  // What becomes of one rank's end: another in its place, or the end of all.
  void mend(LocalJob& job, Reform& reform, bool& given_up) {
    // In this order: whatever was said before a rank failed is then among the words.
    const auto failures = job.take_failures();
    const auto words = job.take_words();
    if (given_up) return;
    const Reform::Verdict verdict = reform.attend(words, failures, stopping());
    given_up = verdict != Reform::Verdict::go_on;
    if (!given_up) return;
    // Whoever waits for a word ends by itself, with its own error; the rest are ended.
    for (int rank = 0; rank < options_.per_node; ++rank) job.say(rank, text_of(NextRound{false, 0, "", ""}));
    const bool again = verdict == Reform::Verdict::stuck && num_restarts_ < options_.max_restarts && !stuck_at_step_;
    if (again) {
      fmt::print(stderr, "no recovery in place: {}\n", *reform.stuck());
      job.kill();
    } else {
      job.terminate();
    }
  }

  // The round's hub, and while ranks come together again the next one's: the former is left in order.
  Reform reform_of(LocalJob& job, std::unique_ptr<net::Hub>& hub, std::unique_ptr<net::Hub>& next) {
    Reform::Options options;
    options.num_ranks = options_.per_node;
    options.round = round_;
    options.patience = options_.reform_patience;
    options.open = [this, &next](int round) {
      const Meeting meeting = meet(round, next);
      return Reform::Opened{{true, round, round_name(round), meeting.store}, variables_of(round, meeting)};
    };
    options.may_begin = [this] {
      if (num_restarts_ >= options_.max_restarts || !look_at_steps()) return false;
      if (options_.restarting) options_.restarting();
      return ++num_restarts_ > 0;
    };
    options.tell = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
    options.formed = [&hub, &next] { hub = std::move(next); };
    return Reform(job, options);
  }

  std::vector<RoundEnd> one_round() {
    const int round = round_;
    std::unique_ptr<net::Hub> hub, next;  // they outlive the ranks
    const Meeting meeting = meet(round, hub);
    LocalJob job(local_options(round, meeting));
    Reform reform = reform_of(job, hub, next);
    bool passed_on = false, given_up = false;
    std::optional<Deadline> patience;
    while (!job.ended()) {
      if (in_place()) {
        job.wait_news(Deadline::after(kLook));
        mend(job, reform, given_up);
      } else {
        job.wait(Deadline::after(kLook));
      }
      if (const int asked = options_.signal ? options_.signal() : 0; asked != 0 && !passed_on) {
        job.signal(asked);
        passed_on = true;
      }
      if (!passed_on && change_is_due_ && change_is_due_()) {
        job.signal(SIGTERM);
        passed_on = true;
      }
      check_agents();
      if (!patience && failed_elsewhere(round)) patience = Deadline::after(options_.patience);
      if (patience && patience->passed()) job.terminate();
    }
    if (in_place()) round_ = reform.round() + 1;  // which it may have opened
    RoundEnd end = end_of_round(options_.node_rank, job.wants_requeue(), job.failure(), reform);
    if (end.exit_code != 0 && !stuck_at_step_) look_at_steps();
    end.stuck_at_step = stuck_at_step_;
    if (!agents_) return {end};
    agents_->store->set(key("end", round, options_.node_rank), text_of(end));
    if (end.exit_code != 0) agents_->store->set(key("failed", round, 0), "");
    return all_ends(round);
  }

  // Before each restart: false when those before have not helped.
  bool look_at_steps() {
    if (!options_.highest_step || options_.node_rank != 0) return true;  // the first rank is the first host's
    const int64_t step = options_.highest_step();
    const bool higher = !highest_step_ || step > *highest_step_;
    restarts_without_step_ = higher ? 0 : restarts_without_step_ + 1;
    if (higher) highest_step_ = step;
    if (restarts_without_step_ >= kMaxRestartsWithoutStep) stuck_at_step_ = std::max<int64_t>(0, *highest_step_);
    return !stuck_at_step_;
  }

  bool failed_elsewhere(int round) const { return agents_ && agents_->store->try_get(key("failed", round, 0)); }

  // CommError names the host whose agent is gone.
  void check_agents() const {
    if (!agents_) return;
    for (int node = 0; node < options_.num_nodes; ++node)
      if (agents_->fate->lost(node))
        throw CommError(
            CommError::Kind::lost, -1,
            fmt::format("the launcher of host {} ({}) {}; its ranks end with it", node,
                        net::host_name(agents_->peers[static_cast<size_t>(node)].host), agents_->fate->loss(node)));
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
        throw CommError(CommError::Kind::timeout, -1,
                        fmt::format("host {} ({}) has not ended its ranks", node,
                                    net::host_name(agents_->peers[static_cast<size_t>(node)].host)));
      ::usleep(20000);
    }
    return ends;
  }

  AgentOptions options_;
  std::unique_ptr<net::World> agents_;   // null on a single host
  std::function<bool()> change_is_due_;  // null: hosts are those that began
  int round_ = 0, num_restarts_ = 0;     // the same on every host
  std::optional<int64_t> highest_step_;  // when ranks were started again last
  int restarts_without_step_ = 0;
  std::optional<int64_t> stuck_at_step_;  // restarting has not helped
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
         exit_code != static_cast<int>(kExitTraining) && exit_code != kCannotRun && exit_code != kNoSuchProgram;
}

RoundEnd end_of_round(int node, bool wants_requeue, std::optional<Failure> failure, const Reform& reform) {
  RoundEnd end{node, wants_requeue ? static_cast<int>(ExitCode::requeue) : 0, {}};
  // What would fail again explains the end, also where it came of replacing a rank that was killed.
  const std::optional<Failure>& condemned = reform.condemned();
  if (condemned && (!failure || !worth_restarting(condemned->exit_code))) failure = condemned;
  if (failure) end = {node, failure->exit_code, *failure};
  // Ranks that lost each other, and none of them had failed by itself when they were ended.
  if (end.exit_code == 0 && reform.stuck()) {
    const int code = static_cast<int>(ExitCode::comm);
    end = {node, code, {0, code, fmt::format("lost its peers: {}", *reform.stuck()), "", false}};
  }
  return end;
}

Then after_round(const RoundEnd& cause, bool stopping, int num_restarts, int max_restarts) {
  if (cause.exit_code == 0 || cause.exit_code == static_cast<int>(ExitCode::requeue)) return Then::ended;
  return stopping || !worth_restarting(cause.exit_code) || num_restarts >= max_restarts ? Then::failed : Then::again;
}

const RoundEnd& cause_of(const std::vector<RoundEnd>& ends) {
  const RoundEnd* cause = &ends.front();
  for (const RoundEnd& end : ends)
    if (suspicion(end) > suspicion(*cause)) cause = &end;
  return *cause;
}

EpochEnd run_epoch(const AgentOptions& options, const std::function<bool()>& change_is_due, int& num_restarts) {
  Agent agent(options, change_is_due, num_restarts);
  try {
    const int code = agent.run();
    num_restarts = agent.num_restarts();
    if (code == static_cast<int>(ExitCode::requeue) && change_is_due()) return {};
    return {code, {}};
  } catch (const CommError&) {
    num_restarts = agent.num_restarts();
    EpochEnd end{std::nullopt, agent.lost_nodes()};
    if (end.lost.empty()) throw;
    return end;
  }
}

int run_agent(const AgentOptions& options) {
  if (options.num_nodes < 1 || options.per_node < 1)
    throw UsageError(fmt::format("got {} hosts with {} ranks each; expected at least one of each", options.num_nodes,
                                 options.per_node));
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes)
    throw UsageError(
        fmt::format("--node-rank {}: hosts are numbered 0 to {}", options.node_rank, options.num_nodes - 1));
  if (options.command.empty()) throw UsageError("nothing to launch: give a command behind --");
  if (options.num_nodes > 1 && options.endpoint.empty())
    throw UsageError("several hosts need --rdzv-endpoint HOST:PORT, the first host's address and a free port");
  if (options.num_nodes > 1 && options.secret.bytes().empty())
    throw UsageError(
        "several hosts need a shared secret: --secret-file FILE (or ESPALIER_SECRET_FILE), the same 0600 file on each; "
        "`head -c 32 /dev/urandom | base64` makes one");
  AgentOptions named = options;
  if (options.num_nodes > 1 && options.job.empty()) named.job = name_by(options.secret);
  if (options.least_nodes > 0) return run_elastic(named);
  return Agent(named).run();
}

}  // namespace esp::launch
