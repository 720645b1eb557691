// The hub of one round on the virtual network: Espalier's HubCore with simulated connections instead of sockets. It
// runs in the launcher's process.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "esp/net/store/hub_core.h"
#include "tests/faults/simulation/invariant_checker.h"
#include "tests/faults/simulation/virtual_time.h"

namespace esp::sim {

// Bugs that tests inject, to show that the checker detects them.
struct InjectedBugs {
  bool late_disconnect = false;  // the hub notices a closed connection late
  bool oldest_replica = false;   // ranks resume from the oldest replica
  bool forget_to_kill = false;   // the launcher replaces a rank that does not respond, without killing it
};

class VirtualHub {
 public:
  VirtualHub(Simulation& simulation, InvariantChecker& invariants, const ProcessPtr& process, int size,
             const std::string& job, const InjectedBugs& bugs);
  ~VirtualHub();  // announces the closing to all clients, then closes their connections

  const std::string& job() const { return job_; }
  const ProcessPtr& process() const { return process_; }
  // Call when a client has connected and completed the handshake.
  void accept(const LinkPtr& link, const net::HandshakeRequest& request);

 private:
  void on_message(int id, std::string_view bytes);
  void closed(int id);
  void send(int id, const std::string& bytes);
  void remove_lost_ranks();

  Simulation& simulation_;
  InvariantChecker& invariants_;
  const ProcessPtr process_;
  const std::string job_;
  const InjectedBugs bugs_;
  net::HubCore core_;
  std::map<int, LinkPtr> links_;
  std::set<int> closed_;  // connections that were reported to HubCore as closed
  // (connection, rank) → kind of the frame that was sent for that rank: `lost` or `left`
  std::map<std::pair<int, int>, net::FrameKind> sent_ends_;
  std::vector<int> pending_losses_;
  int next_id_ = 0;
  // false once this object is destroyed; connections may live longer and check it
  std::shared_ptr<bool> here_ = std::make_shared<bool>(true);
};

}  // namespace esp::sim
