// This rank among those of its job: the world its environment describes and a communicator of all ranks, and how both
// are made anew when a rank was lost and the launcher calls the others together again. One thread, but for `loss`.
#pragma once

#include <memory>
#include <optional>

#include "esp/comm/communicator.h"
#include "esp/comm/stall_watch.h"
#include "esp/launch/control.h"
#include "esp/launch/environment.h"
#include "esp/net/rendezvous.h"
#include "esp/train/recover.h"

namespace esp::app {

class Joined {
 public:
  // Meets the others. UsageError, CommError.
  Joined(const launch::Environment& environment, comm::CommOptions communicating, comm::StallWatch::Listener listener);

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
  std::optional<launch::Control> control_;
  std::string snapshots_;
  std::unique_ptr<net::World> world_;  // outlives the communicator
  std::unique_ptr<comm::Communicator> ranks_;
  const comm::StallWatch::Listener listener_;
  std::unique_ptr<comm::StallWatch> stalls_;
  train::InjectedFault fault_;
};

}  // namespace esp::app
