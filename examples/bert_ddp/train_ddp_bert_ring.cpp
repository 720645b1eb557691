// Trains a small BERT classifier on N processes, each with a copy of the model, averaging gradients around a ring.
//
// N processes that meet at 127.0.0.1, port 12355; or all of them from one command:
//   for r in 0 1; do train_ddp_bert_ring --world_size 2 --rank $r & done; wait
//   train_ddp_bert_ring --world_size 2 --spawn
// Two machines of four, played by one: --world_size 8 --nodes 2 --spawn. On real ones, with a 0600 file of the same
// secret on both: ESPALIER_SECRET_FILE=… train_ddp_bert_ring --world_size 8 --rank … --master_addr HOST
// Without --rank and --spawn the launcher that started it (torchrun, srun, mpirun) says who it is.
//
// stdout: one line per epoch, by rank 0. stderr: who takes part, and what they work on.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/launch/secret.h"
#include "esp/launch/world.h"
#include "esp/net/secret.h"
#include "examples/bert_ddp/replica.h"

namespace bert_ddp {
namespace {

using namespace esp;

struct Arguments {
  int world_size = 1, rank = -1, port = 12355, nodes = 1;
  std::string master_addr = "127.0.0.1";
  bool spawn = false;
  int epochs = 3;
  ReplicaOptions replica;
};

// "10,477,058"
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

void train(const net::RendezvousOptions& meeting, const Arguments& arguments) {
  const auto world = net::rendezvous(meeting, Deadline::after(meeting.net.start_timeout));
  const auto comm = comm::make_communicator(*world, world->everyone(), {});
  fmt::print(stderr, "rank {} of {}: process {}{}\n", comm->rank(), comm->size(), getpid(),
             meeting.host_name.empty() ? "" : " on " + meeting.host_name);
  Replica replica(*comm, arguments.replica);
  if (comm->rank() == 0)
    fmt::print(stderr, "{} parameters, {} items, {} steps per epoch\n", grouped(replica.parameters().count()),
               arguments.replica.num_items, replica.steps_per_epoch());
  for (int epoch = 0; epoch < arguments.epochs; ++epoch) {
    const double loss = replica.train_epoch(static_cast<uint64_t>(epoch));
    if (comm->rank() != 0) continue;
    fmt::print("[Epoch {}/{}] Loss: {:.4f}\n", epoch + 1, arguments.epochs, loss);
    std::fflush(stdout);
  }
}

net::RendezvousOptions meeting_of(const Arguments& arguments, int rank) {
  net::RendezvousOptions meeting;
  meeting.rank = rank;
  meeting.size = arguments.world_size;
  meeting.endpoint = fmt::format("tcp://{}:{}", arguments.master_addr, arguments.port);
  meeting.host_hub = rank == 0;
  if (arguments.nodes > 1) meeting.host_name = fmt::format("node-{}", rank / (arguments.world_size / arguments.nodes));
  return meeting;
}

// The secret of a rank that was given none: on one machine its user has one.
net::Secret secret_of(const net::RendezvousOptions& meeting) {
  bool here = meeting.local_size == meeting.size;
  for (const char* loopback : {"tcp://127.", "tcp://localhost:"}) here = here || meeting.endpoint.starts_with(loopback);
  if (!here)
    throw UsageError(
        fmt::format("ranks that meet at {} need a secret: put one into a 0600 file on every host and "
                    "name it in ESPALIER_SECRET_FILE",
                    meeting.endpoint));
  return net::local_secret();
}

int guarded(int rank, const auto& body) {
  const auto complain = [&](const char* why) {
    fmt::print(stderr, "train_ddp_bert_ring{}: {}\n", rank < 0 ? "" : fmt::format(", rank {}", rank), why);
  };
  try {
    body();
    return 0;
  } catch (const Error& error) {
    complain(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    complain(error.what());
    return static_cast<int>(ExitCode::internal);
  }
}

// This process becomes rank 0 and its children the others. It forks while it has no threads.
int spawn_all(const Arguments& arguments) {
  const net::Secret secret = net::Secret::random();
  const auto run = [&](int rank) {
    return guarded(rank, [&] {
      net::RendezvousOptions meeting = meeting_of(arguments, rank);
      meeting.secret = secret;
      train(meeting, arguments);
    });
  };
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  int result = 0;
  for (int rank = 1; rank < arguments.world_size && result == 0; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(getppid() == parent ? run(rank) : 1);
    }
    if (pid > 0)
      children.push_back(pid);
    else
      result = guarded(rank, [] { throw IoError("cannot start a process: " + errno_text(errno)); });
  }
  if (result == 0) result = run(0);
  // The others have ended their last call with us, or it failed for them as it did for us: none stays.
  for (const pid_t pid : children) {
    if (result != 0) kill(pid, SIGTERM);
    int status = 0;
    if (waitpid(pid, &status, 0) == pid && status != 0 && result == 0)
      result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return result;
}

int run_one(const Arguments& arguments, bool told) {
  return guarded(arguments.rank, [&] {
    const launch::Environment environment = launch::process_environment();
    net::RendezvousOptions meeting = told ? meeting_of(arguments, arguments.rank) : launch::join_options(environment);
    if (told) meeting.secret = launch::read_secret(environment);
    if (meeting.secret.bytes().empty()) meeting.secret = secret_of(meeting);
    train(meeting, arguments);
  });
}

void check(const Arguments& arguments, bool sized) {
  if (arguments.spawn && arguments.rank >= 0) throw UsageError("--spawn starts every rank; leave --rank out");
  if (sized && !arguments.spawn && arguments.rank < 0)
    throw UsageError("--world_size wants --rank, which of them this is, or --spawn, which starts them all");
  if (arguments.rank >= arguments.world_size)
    throw UsageError(fmt::format("rank {} of {} cannot be; ranks are 0 to {}", arguments.rank, arguments.world_size,
                                 arguments.world_size - 1));
  if (arguments.world_size % arguments.nodes != 0)
    throw UsageError(fmt::format("{} ranks do not divide over {} nodes", arguments.world_size, arguments.nodes));
}

}  // namespace
}  // namespace bert_ddp

int main(int argc, char** argv) {
  using namespace bert_ddp;
  Arguments arguments;
  CLI::App app{"Trains a small BERT classifier on N processes, averaging gradients around a ring",
               "train_ddp_bert_ring"};
  app.option_defaults()->always_capture_default();
  auto* size = app.add_option("--world_size", arguments.world_size, "processes")->check(CLI::Range(1, 1024));
  app.add_option("--rank", arguments.rank, "which of them this is")->check(CLI::Range(0, 1023))->default_str("");
  app.add_option("--port", arguments.port, "where they meet")->check(CLI::Range(1, 65535));
  app.add_option("--master_addr", arguments.master_addr, "and on which host: rank 0's");
  app.add_flag("--spawn", arguments.spawn, "start all of them, here");
  app.add_option("--nodes", arguments.nodes, "hosts to play, equal shares of the ranks each")
      ->check(CLI::Range(1, 1024));
  app.add_option("--epochs", arguments.epochs, "passes over the data; 0: meet, build and stop")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--batch_size", arguments.replica.batch, "items per process and step")->check(CLI::Range(1, 65536));
  app.add_option("--items", arguments.replica.num_items, "items of the data set")->check(CLI::Range(1, 1 << 30));
  app.add_option("--threads", arguments.replica.threads, "compute threads per process")->check(CLI::Range(1, 1024));
  app.add_option("--seed", arguments.replica.seed, "of parameters, data, their order and dropout");
  app.add_option("--dropout", arguments.replica.dropout, "rate")->check(CLI::Range(0.0, 0.99));
  app.add_flag("--check", arguments.replica.check_copies, "compare all copies of the parameters after every step");
  CLI11_PARSE(app, argc, argv);

  const int wrong = guarded(-1, [&] { check(arguments, size->count() > 0); });
  if (wrong != 0) return wrong;
  return arguments.spawn ? spawn_all(arguments) : run_one(arguments, arguments.rank >= 0);
}
