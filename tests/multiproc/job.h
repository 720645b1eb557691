// A job of forked ranks: a hub in a process of its own, as a launcher has it, and N children that meet there. The test
// talks with each child by lines of text. Everything is killed and reaped when the job goes out of scope.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/net/forked.h"
#include "esp/net/held_port.h"
#include "esp/net/world.h"

namespace esp::multiproc {

struct JobOptions {
  int size = 2;
  comm::CommOptions comm;
  bool hub_in_rank_0 = false;  // as under a foreign launcher; then losing rank 0 loses the hub
};

// A rank's side: its world, its communicator, and the line to the test.
struct Rank {
  net::World& world;
  comm::Communicator& comm;
  net::Forked& parent;
};

class Job {
 public:
  // Forks before any thread is started. Each child runs `body` once all are connected; what it throws ends up as a line
  // "threw …".
  Job(const JobOptions& options, const std::function<void(Rank&)>& body);

  net::Forked& rank(int r) { return ranks_[static_cast<size_t>(r)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int hub_port() const { return std::stoi(port_); }
  // Waits until every child has said `line`.
  void expect_all(const std::string& line);
  void tell_all(const std::string& line);

 private:
  std::string port_;
  std::unique_ptr<net::HeldPort> held_;  // for the hub in rank 0
  std::unique_ptr<net::Forked> hub_;
  std::vector<net::Forked> ranks_;
};

// Segments under the shared-memory file system made by one of these processes.
std::vector<std::string> segments_of(const std::vector<int>& pids);
int num_open_descriptors();
int num_threads();

}  // namespace esp::multiproc
