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

// What a rank ended with, if it did not just return.
struct Outcome {
  std::exception_ptr own;       // thrown on its own account
  std::exception_ptr suffered;  // a CommError: often the echo of another rank's end
};

Outcome run_rank(World& world, const std::function<void(World&)>& body) {
  try {
    body(world);
    return {};
  } catch (const CommError&) {
    return {nullptr, std::current_exception()};
  } catch (const std::exception& error) {
    world.fate->lose(world.rank, fmt::format("ended with an error: {}", error.what()));
    return {std::current_exception(), nullptr};
  } catch (...) {
    world.fate->lose(world.rank, "ended with an unknown error");
    return {std::current_exception(), nullptr};
  }
}

}  // namespace

std::vector<World> thread_worlds(int size, const NetOptions& options, std::shared_ptr<VirtualNetwork> network) {
  if (size < 1) throw UsageError(fmt::format("a world has at least 1 rank, {} given", size));
  if (network && network->size() != size)
    throw UsageError(fmt::format("a virtual network of {} ranks cannot carry a world of {}", network->size(), size));
  World common;
  common.size = size;
  common.job = fmt::format("{:016x}{:016x}", random_word(), random_word());
  common.options = options;
  common.store = std::make_shared<MemoryStore>();
  common.fate = std::make_shared<Fate>();
  common.in_process = std::make_shared<ThreadFabric>(network);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  Peer peer{.host = host, .pid = getpid(), .process = random_word()};
  common.peers.assign(static_cast<size_t>(size), peer);
  // Under a virtual clock machines are virtual too.
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
    if (outcome.own) std::rethrow_exception(outcome.own);
  for (const Outcome& outcome : outcomes)
    if (outcome.suffered) std::rethrow_exception(outcome.suffered);
}

}  // namespace esp::net
