// Ranks for the tests of the fused path: forked processes or threads. Each rank has its own World without launcher or
// network.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "esp/comm/fused/fused_collectives.h"
#include "esp/net/store/file_store.h"
#include "esp/net/store/memory_store.h"

namespace esp::comm::testing {

inline net::World world_of(int rank, int size, std::shared_ptr<net::Store> store, bool threads) {
  net::World world;
  world.rank = rank;
  world.size = size;
  world.store = std::move(store);
  world.peer_status = std::make_shared<net::PeerStatus>();
  for (int k = 0; k < size; ++k)
    world.peers.push_back({.host = "here", .process = threads ? 0 : static_cast<uint64_t>(k)});
  return world;
}

inline net::Group group_of(const net::World& world) {
  net::Group group;
  group.id = 7;
  group.rank = world.rank;
  for (int k = 0; k < world.size; ++k) group.members.push_back(k);
  return group;
}

// The test code of one rank. Returns an empty string on success, else a description of the failure.
using Body = std::function<std::string(net::World& world)>;

// Runs the body; returns its result, or the text of the exception that it threw.
inline std::string outcome(const Body& body, net::World& world) {
  try {
    return body(world);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Runs the body in `size` forked processes and waits for all. Returns the first failure. `expect_dead`: the rank that
// may be killed by a signal; -1: none.
inline std::string fork_ranks(int size, const Body& body, int expect_dead = -1) {
  char directory[] = "/tmp/fused_test.XXXXXX";
  if (!mkdtemp(directory)) return "no temporary directory";
  auto store = std::make_shared<net::FileStore>(directory);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    pid_t pid = fork();
    if (pid == 0) {
      net::World world = world_of(rank, size, store, false);
      std::string error_text = outcome(body, world);
      if (!error_text.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, error_text.c_str());
      _exit(error_text.empty() ? 0 : 1);
    }
    pids.push_back(pid);
  }
  std::string failure;
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    waitpid(pids[static_cast<size_t>(rank)], &status, 0);
    if (status != 0 && rank != expect_dead && failure.empty())
      failure = "rank " + std::to_string(rank) + " ended with status " + std::to_string(status);
  }
  std::filesystem::remove_all(directory);
  return failure;
}

inline std::string thread_ranks(int size, const Body& body) {
  auto store = std::make_shared<net::MemoryStore>();
  std::vector<std::string> error_text(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      net::World world = world_of(rank, size, store, true);
      error_text[static_cast<size_t>(rank)] = outcome(body, world);
    });
  for (auto& thread : threads) thread.join();
  for (auto& text : error_text)
    if (!text.empty()) return text;
  return "";
}

}  // namespace esp::comm::testing
