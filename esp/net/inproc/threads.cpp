#include "esp/net/inproc/threads.h"

#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/inproc/fabric.h"
#include "esp/net/store/memory_store.h"
#include "esp/net/virtual/network.h"

namespace esp::net {
namespace {

uint64_t random_word() {
  uint64_t word = 0;
  if (getrandom(&word, sizeof word, 0) != sizeof word) throw IoError("getrandom failed");
  return word;
}

// The exceptions that a rank's thread ended with, if any.
struct Outcome {
  std::exception_ptr error;       // any exception except CommError
  std::exception_ptr comm_error;  // a CommError; often it only follows from another rank's failure
};

Outcome run_rank(World& world, const std::function<void(World&)>& body) {
  try {
    body(world);
    return {};
  } catch (const CommError&) {
    return {nullptr, std::current_exception()};
  } catch (const std::exception& error) {
    world.peer_status->mark_lost(world.rank, fmt::format("ended with an error: {}", error.what()));
    return {std::current_exception(), nullptr};
  } catch (...) {
    world.peer_status->mark_lost(world.rank, "ended with an unknown error");
    return {std::current_exception(), nullptr};
  }
}

}  // namespace

std::vector<World> thread_worlds(int size, const NetOptions& options, std::shared_ptr<VirtualNetwork> network) {
  if (size < 1) throw UsageError(fmt::format("world size: got {}; expected at least 1", size));
  if (network && network->size() != size)
    throw UsageError(fmt::format("virtual network: got {} ranks; expected the world size {}", network->size(), size));
  World common;
  common.size = size;
  common.job = fmt::format("{:016x}{:016x}", random_word(), random_word());
  common.options = options;
  common.store = std::make_shared<MemoryStore>();
  common.peer_status = std::make_shared<PeerStatus>();
  common.thread_fabric = std::make_shared<ThreadFabric>(network);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  Peer peer{.host = host, .pid = getpid(), .process = random_word()};
  common.peers.assign(static_cast<size_t>(size), peer);
  // With a virtual clock the assignment of ranks to machines is simulated too.
  for (int rank = 0; network && rank < size; ++rank)
    common.peers[static_cast<size_t>(rank)].host = fmt::format("node{}", network->node_of(rank));

  std::vector<World> worlds(static_cast<size_t>(size), common);
  for (int rank = 0; rank < size; ++rank) {
    World& world = worlds[static_cast<size_t>(rank)];
    world.rank = rank;
    world.log = Log(LogLevel::warn, rank);
  }
  return worlds;
}

void run_threads(int size, const std::function<void(World&)>& body, const NetOptions& options,
                 std::shared_ptr<VirtualNetwork> network) {
  std::vector<World> worlds = thread_worlds(size, options, std::move(network));
  std::vector<Outcome> outcomes(worlds.size());
  {
    std::vector<std::jthread> threads;
    threads.reserve(worlds.size());
    for (size_t rank = 0; rank < worlds.size(); ++rank) {
      threads.emplace_back([&, rank] {
        pthread_setname_np(pthread_self(), fmt::format("esp-rank-{}", rank).c_str());
        outcomes[rank] = run_rank(worlds[rank], body);
      });
    }
  }
  for (const Outcome& outcome : outcomes)
    if (outcome.error) std::rethrow_exception(outcome.error);
  for (const Outcome& outcome : outcomes)
    if (outcome.comm_error) std::rethrow_exception(outcome.comm_error);
}

}  // namespace esp::net
