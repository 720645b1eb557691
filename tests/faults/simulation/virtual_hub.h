// The Hub of one round on the virtual network: the product's HubCore, with connections of the simulation for sockets.
// It lives in the launcher's process.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "esp/net/store/hub_core.h"
#include "tests/faults/simulation/truth.h"
#include "tests/faults/simulation/virtual_time.h"

namespace esp::sim {

// Rules left out on purpose, to see that their breach is found.
struct Broken {
  bool slow_to_bury = false;    // the hub hears late that a connection has closed
  bool oldest_replica = false;  // ranks go on from the oldest state
  bool forget_to_kill = false;  // a rank that hangs is replaced without being killed
};

class VirtualHub {
 public:
  VirtualHub(Simulation& simulation, Truth& truth, const ProcessPtr& process, int size, const std::string& job,
             const Broken& broken);
  ~VirtualHub();  // tells all that it ends in order

  const std::string& job() const { return job_; }
  const ProcessPtr& process() const { return process_; }
  // Somebody has called and shown that it is of the job.
  void accept(const LinkPtr& link, const net::Hello& hello);

 private:
  void heard(int id, std::string_view bytes);
  void closed(int id);
  void send(int id, const std::string& bytes);
  void bury();

  Simulation& simulation_;
  Truth& truth_;
  const ProcessPtr process_;
  const std::string job_;
  const Broken broken_;
  net::HubCore core_;
  std::map<int, LinkPtr> links_;
  std::set<int> closed_;                           // connections that the hub was told of as closed
  std::map<std::pair<int, int>, net::Kind> told_;  // to a watch of a rank: lost, or left
  std::vector<int> doomed_;
  int next_id_ = 0;
  std::shared_ptr<bool> here_ = std::make_shared<bool>(true);  // false once destroyed: connections may outlive it
};

}  // namespace esp::sim
