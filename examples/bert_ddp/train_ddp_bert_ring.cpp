// Trains a small BERT classifier on N processes. Each has a replica of the model, and a ring all-reduce averages the
// gradients.
//
// Start N processes, whose rendezvous is at 127.0.0.1, port 12355; or start all with one command:
//   for r in 0 1; do train_ddp_bert_ring --world_size 2 --rank $r & done; wait
//   train_ddp_bert_ring --world_size 2 --spawn
// Two hosts of four ranks each, simulated on one host: --world_size 8 --nodes 2 --spawn. On real hosts, both need a
// file with mode 0600 and the same secret: ESPALIER_SECRET_FILE=… train_ddp_bert_ring --world_size 8 --rank …
// --master_addr HOST
//
// Without --rank and --spawn, the launcher's environment (torchrun, srun, mpirun) gives rank and size.
//
// stdout: rank 0 prints one line per epoch. stderr: the process of each rank, and the size of the model and the data.
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

// Formats a number with thousands separators: "10,477,058".
std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

void train(const net::RendezvousOptions& rendezvous, const Arguments& arguments) {
  const auto world = net::rendezvous(rendezvous, Deadline::after(rendezvous.net.start_timeout));
  const auto comm = comm::make_communicator(*world, world->world_group(), {});
  fmt::print(stderr, "rank {} of {}: process {}{}\n", comm->rank(), comm->size(), getpid(),
             rendezvous.host_name.empty() ? "" : " on " + rendezvous.host_name);
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

net::RendezvousOptions rendezvous_options_of(const Arguments& arguments, int rank) {
  net::RendezvousOptions rendezvous;
  rendezvous.rank = rank;
  rendezvous.size = arguments.world_size;
  rendezvous.endpoint = fmt::format("tcp://{}:{}", arguments.master_addr, arguments.port);
  rendezvous.host_hub = rank == 0;
  if (arguments.nodes > 1)
    rendezvous.host_name = fmt::format("node-{}", rank / (arguments.world_size / arguments.nodes));
  return rendezvous;
}

// Secret of a rank without ESPALIER_SECRET_FILE. If all ranks are on one machine, it is the user's own secret.
net::Secret secret_of(const net::RendezvousOptions& rendezvous) {
  bool here = rendezvous.local_size == rendezvous.size;
  for (const char* loopback : {"tcp://127.", "tcp://localhost:"})
    here = here || rendezvous.endpoint.starts_with(loopback);
  if (!here)
    throw UsageError(fmt::format(
        "ESPALIER_SECRET_FILE: not set; ranks with a rendezvous at {} need a secret. Put the same secret into a "
        "file of mode 0600 on every host, and set the variable to its path",
        rendezvous.endpoint));
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

// Forks the other ranks and becomes rank 0. Must be called before any thread starts.
int spawn_all(const Arguments& arguments) {
  const net::Secret secret = net::Secret::random();
  const auto run = [&](int rank) {
    return guarded(rank, [&] {
      net::RendezvousOptions rendezvous = rendezvous_options_of(arguments, rank);
      rendezvous.secret = secret;
      train(rendezvous, arguments);
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
  // All children exit now: their last collective has finished, or it failed for them too.
  for (const pid_t pid : children) {
    if (result != 0) kill(pid, SIGTERM);
    int status = 0;
    if (waitpid(pid, &status, 0) == pid && status != 0 && result == 0)
      result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return result;
}

int run_one(const Arguments& arguments, bool rank_given) {
  return guarded(arguments.rank, [&] {
    const launch::Environment environment = launch::process_environment();
    net::RendezvousOptions rendezvous =
        rank_given ? rendezvous_options_of(arguments, arguments.rank) : launch::join_options(environment);
    if (rank_given) rendezvous.secret = launch::read_secret(environment);
    if (rendezvous.secret.bytes().empty()) rendezvous.secret = secret_of(rendezvous);
    train(rendezvous, arguments);
  });
}

void check(const Arguments& arguments, bool sized) {
  if (arguments.spawn && arguments.rank >= 0)
    throw UsageError(
        fmt::format("--rank: got {} with --spawn, which starts every rank. Leave --rank out", arguments.rank));
  if (sized && !arguments.spawn && arguments.rank < 0)
    throw UsageError(fmt::format(
        "--world_size: got {} without --rank and --spawn; expected --rank N (rank of this process) or --spawn "
        "(starts all ranks)",
        arguments.world_size));
  if (arguments.rank >= arguments.world_size)
    throw UsageError(fmt::format("--rank: got {}; expected 0 to {}", arguments.rank, arguments.world_size - 1));
  if (arguments.world_size % arguments.nodes != 0)
    throw UsageError(
        fmt::format("--world_size: got {}; must be a multiple of --nodes = {}", arguments.world_size, arguments.nodes));
}

}  // namespace
}  // namespace bert_ddp

int main(int argc, char** argv) {
  using namespace bert_ddp;
  Arguments arguments;
  CLI::App app{"Trains a small BERT classifier on N processes, averaging gradients by a ring all-reduce",
               "train_ddp_bert_ring"};
  app.option_defaults()->always_capture_default();
  auto* size = app.add_option("--world_size", arguments.world_size, "number of processes")->check(CLI::Range(1, 1024));
  app.add_option("--rank", arguments.rank, "rank of this process")->check(CLI::Range(0, 1023))->default_str("");
  app.add_option("--port", arguments.port, "port of the rendezvous")->check(CLI::Range(1, 65535));
  app.add_option("--master_addr", arguments.master_addr, "host of rank 0");
  app.add_flag("--spawn", arguments.spawn, "start all ranks on this machine");
  app.add_option("--nodes", arguments.nodes, "number of simulated hosts; each has the same number of ranks")
      ->check(CLI::Range(1, 1024));
  app.add_option("--epochs", arguments.epochs, "passes over the data; 0: connect, build the model and stop")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--batch_size", arguments.replica.batch, "items per process and step")->check(CLI::Range(1, 65536));
  app.add_option("--items", arguments.replica.num_items, "items of the data set")->check(CLI::Range(1, 1 << 30));
  app.add_option("--threads", arguments.replica.threads, "compute threads per process")->check(CLI::Range(1, 1024));
  app.add_option("--seed", arguments.replica.seed, "seed of parameters, data, data order and dropout");
  app.add_option("--dropout", arguments.replica.dropout, "dropout rate")->check(CLI::Range(0.0, 0.99));
  app.add_flag("--check", arguments.replica.check_copies, "compare the parameters of all replicas after every step");
  CLI11_PARSE(app, argc, argv);

  const int wrong = guarded(-1, [&] { check(arguments, size->count() > 0); });
  if (wrong != 0) return wrong;
  return arguments.spawn ? spawn_all(arguments) : run_one(arguments, arguments.rank >= 0);
}
