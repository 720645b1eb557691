// This rank among those of its job: the world its environment describes and a communicator of all ranks, and how both
// are made anew when a rank was lost and the launcher calls the others together again. One thread, but for `loss`.
#pragma once

#include <memory>
#include <optional>

#include "esp/comm/communicator.h"
#include "esp/comm/stall_detector.h"
#include "esp/launch/control.h"
#include "esp/launch/environment.h"
#include "esp/net/rendezvous.h"
#include "esp/train/recover.h"
#include "esp/train/same_run.h"

namespace esp::app {

class Joined {
 public:
  // Connects to the other ranks, and compares `identity` with theirs at every rendezvous. The timeouts are the run
  // file's; those of the environment override them. UsageError, CommError, CollectiveRefusal.
  Joined(const launch::Environment& environment, comm::CommOptions communicating, const net::NetOptions& timeouts,
         comm::StallDetector::Callbacks listener, train::RankIdentity identity);

  comm::Communicator& ranks() { return *ranks_; }
  train::Standing standing() const;
  // What the run may do about a lost rank: as much as the launcher offers.
  train::Recovery recovery();

 private:
  void meet(Deadline deadline);
  std::optional<CommError> loss() const;
  std::optional<train::Standing> reform();

  net::RendezvousOptions meeting_;
  comm::CommOptions communicating_;
  const train::RankIdentity identity_;
  std::optional<launch::Control> control_;
  std::string snapshots_;
  std::unique_ptr<net::World> world_;  // outlives the communicator
  std::unique_ptr<comm::Communicator> ranks_;
  const comm::StallDetector::Callbacks listener_;
  std::unique_ptr<comm::StallDetector> stalls_;
  train::InjectedFault fault_;
};

}  // namespace esp::app
