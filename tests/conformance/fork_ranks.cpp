#include "tests/conformance/fork_ranks.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/listener.h"
#include "esp/net/peer_status.h"

namespace esp::net {
namespace {

// A store in shared memory: a table of fixed size with one lock for all processes. A waiting get polls every half
// millisecond.
class ForkedStore final : public Store {
 public:
  ForkedStore() {
    void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ESP_CHECK(memory != MAP_FAILED, "{}", errno_text(errno));
    table_ = static_cast<Table*>(memory);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&table_->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  ~ForkedStore() override { munmap(table_, sizeof(Table)); }

  void set(std::string_view key, std::string_view value) override {
    Lock lock(table_->mutex);
    put(key, value);
  }
  std::string get(std::string_view key, Deadline deadline) override {
    for (;; std::this_thread::sleep_for(std::chrono::microseconds(500))) {
      if (auto value = try_get(key)) return *value;
      if (deadline.passed())
        throw CommError(CommError::Kind::timeout, -1, fmt::format("timed out waiting for key \"{}\"", key));
    }
  }
  std::optional<std::string> try_get(std::string_view key) override {
    Lock lock(table_->mutex);
    Entry* entry = find(key);
    if (!entry) return std::nullopt;
    return std::string(entry->value);
  }
  int64_t add(std::string_view key, int64_t delta) override {
    Lock lock(table_->mutex);
    Entry* entry = find(key);
    int64_t sum = (entry ? std::strtoll(entry->value, nullptr, 10) : 0) + delta;
    put(key, std::to_string(sum));
    return sum;
  }
  void erase(std::string_view key) override {
    Lock lock(table_->mutex);
    if (Entry* entry = find(key)) entry->key[0] = '\0';
  }

 private:
  struct Entry {
    char key[256];
    char value[256];
  };
  struct Table {
    pthread_mutex_t mutex;  // guards the entries of the table
    Entry entries[4096];
  };
  struct Lock {
    explicit Lock(pthread_mutex_t& which) : mutex(which) { pthread_mutex_lock(&mutex); }
    ~Lock() { pthread_mutex_unlock(&mutex); }
    pthread_mutex_t& mutex;
  };

  Entry* find(std::string_view key) {
    for (Entry& entry : table_->entries)
      if (entry.key == key) return &entry;
    return nullptr;
  }
  void put(std::string_view key, std::string_view value) {
    Entry* entry = find(key);
    if (!entry) entry = find("");
    ESP_CHECK(entry && key.size() < sizeof entry->key && value.size() < sizeof entry->value, "the test store is full");
    std::memcpy(entry->key, key.data(), key.size());
    entry->key[key.size()] = '\0';
    std::memcpy(entry->value, value.data(), value.size());
    entry->value[value.size()] = '\0';
  }

  Table* table_;
};

// Runs the body in a child process. Returns its exit code: 0 if it did not throw and no expectation failed.
int run_child(World& world, const std::function<void(World&)>& body) {
  try {
    body(world);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {} threw: {}\n", world.rank, error.what());
    return 1;
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// Opens the listener of this rank and exchanges ports with the other ranks.
void listen(World& world) {
  world.listener = std::make_shared<Listener>("127.0.0.1", 0, world.secret, world.job);
  world.store->set(fmt::format("port/{}", world.rank), std::to_string(world.listener->port()));
  for (int peer = 0; peer < world.size; ++peer) {
    Peer& entry = world.peers[static_cast<size_t>(peer)];
    entry.address = "127.0.0.1";
    entry.port = std::stoi(world.store->get(fmt::format("port/{}", peer), Deadline::after_ms(30'000)));
  }
}

void await(int rank, pid_t child, Deadline deadline) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (deadline.passed()) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      ADD_FAILURE() << "rank " << rank << " did not end";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (WIFSIGNALED(status)) ADD_FAILURE() << "rank " << rank << " died of " << strsignal(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) ADD_FAILURE() << "rank " << rank << " failed; see above";
}

}  // namespace

void fork_ranks(int size, const std::function<void(World&)>& body, const ForkOptions& options) {
  World world;
  world.size = size;
  world.job = fmt::format("fork-{}", getpid());
  world.secret = Secret(std::string(32, 's'));
  world.store = std::make_shared<ForkedStore>();
  world.options.start_timeout = std::chrono::seconds(30);
  int per_host = options.ranks_per_host > 0 ? options.ranks_per_host : size;
  for (int peer = 0; peer < size; ++peer)
    world.peers.push_back({.host = fmt::format("host{}", peer / per_host), .process = static_cast<uint64_t>(peer) + 1});

  std::fflush(nullptr);  // empties the buffer before fork(); otherwise every child would print its content again
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    pid_t child = fork();
    ESP_CHECK(child >= 0, "{}", errno_text(errno));
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      world.rank = rank;
      world.peer_status = std::make_shared<PeerStatus>();
      int code = run_child(world, [&](World& mine) {
        if (options.listen) listen(mine);
        body(mine);
      });
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(child);
  }
  Deadline deadline = Deadline::after(std::chrono::seconds(120));
  for (int rank = 0; rank < size; ++rank) await(rank, children[static_cast<size_t>(rank)], deadline);
}

}  // namespace esp::net
