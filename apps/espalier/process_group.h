// The process group of this rank: the world that its environment describes, and a communicator of all ranks. After a
// rank failure the launcher starts a new rendezvous, and both are rebuilt. One thread, except `peer_failure`.
#pragma once

#include <memory>
#include <optional>

#include "esp/comm/communicator.h"
#include "esp/comm/stall_detector.h"
#include "esp/launch/control.h"
#include "esp/launch/environment.h"
#include "esp/net/rendezvous.h"
#include "esp/train/rank_identity.h"
#include "esp/train/recovery.h"

namespace esp::app {

class ProcessGroup {
 public:
  // Connects to the other ranks. Every rendezvous checks that all ranks have the same `identity`. `timeouts` come from
  // the run file; environment variables override them. Throws UsageError, CommError or CollectiveError.
  ProcessGroup(const launch::Environment& environment, comm::CommOptions comm_options, const net::NetOptions& timeouts,
               comm::StallDetector::Callbacks listener, train::RankIdentity identity);

  comm::Communicator& ranks() { return *ranks_; }
  train::JobContext context() const;
  // Recovery actions for the trainer after a rank failure, as far as the launcher supports them.
  train::RecoveryOptions recovery();

 private:
  void connect(Deadline deadline);
  std::optional<CommError> peer_failure() const;
  std::optional<train::JobContext> reconnect();

  net::RendezvousOptions rendezvous_;
  comm::CommOptions comm_options_;
  const train::RankIdentity identity_;
  std::optional<launch::ControlChannel> control_;
  std::string snapshots_;
  std::unique_ptr<net::World> world_;  // must outlive the communicator
  std::unique_ptr<comm::Communicator> ranks_;
  const comm::StallDetector::Callbacks listener_;
  std::unique_ptr<comm::StallDetector> stalls_;
  train::InjectedFault fault_;
};

}  // namespace esp::app
