// A job of forked ranks: a hub in a separate process, as under a launcher, and N child processes that connect to it.
// The test exchanges lines of text with each child. The destructor kills and reaps all processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "esp/comm/communicator.h"
#include "esp/net/child_process.h"
#include "esp/net/reserved_port.h"
#include "esp/net/world.h"

namespace esp::multiproc {

struct JobOptions {
  int size = 2;
  comm::CommOptions comm;
  // true: rank 0 hosts the hub, as under a foreign launcher, so the loss of rank 0 is also the loss of the hub
  bool hub_in_rank_0 = false;
};

// Arguments of a child's body: its world, its communicator, and the pipe to the test.
struct RankContext {
  net::World& world;
  comm::Communicator& comm;
  net::ChildProcess& parent;
};

class Job {
 public:
  // Forks all processes before any thread is started. Each child runs `body` once all ranks are connected. If the body
  // throws, the child writes the line "threw …".
  Job(const JobOptions& options, const std::function<void(RankContext&)>& body);

  net::ChildProcess& rank(int r) { return ranks_[static_cast<size_t>(r)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int hub_port() const { return std::stoi(port_); }
  // Expects that the next line of every child is `line`.
  void expect_all(const std::string& line);
  void write_all(const std::string& line);  // sends `line` to every child

 private:
  std::string port_;
  std::unique_ptr<net::ReservedPort> hub_port_reservation_;  // keeps the port reserved for the hub in rank 0
  std::unique_ptr<net::ChildProcess> hub_;
  std::vector<net::ChildProcess> ranks_;
};

// Names of the shared-memory segments that these processes created.
std::vector<std::string> segments_of(const std::vector<int>& pids);
int num_open_descriptors();
int num_threads();

}  // namespace esp::multiproc
