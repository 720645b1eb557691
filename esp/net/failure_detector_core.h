// FailureDetectorCore: the decisions of the failure detector, without sockets, threads or a clock. It records the Hub's
// reports in PeerStatus, decides when the exit of a local peer process counts as a rank failure, and handles a closed
// connection to the Hub.
//
// net/hub_failure_detector.h does the I/O; the fault simulation (tests/faults/simulation) drives it with a virtual
// clock. Single-threaded.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/net/failure_detector.h"
#include "esp/net/peer_status.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace esp::net {

class FailureDetectorCore {
 public:
  struct Callbacks {
    std::function<void(FrameKind kind, std::string body)> post;  // sends a frame to the Hub, in the order of the calls
    std::function<CallPosition(uint64_t group)> position;        // returns the call position of this rank
    std::function<void(const PositionReport& report)> on_position;  // receives another rank's call position
  };
  FailureDetectorCore(int rank, int hub_rank, Duration heartbeat, std::shared_ptr<PeerStatus> peer_status,
                      const Log& log, Callbacks callbacks, Clock::time_point now);

  void received(std::string_view bytes);
  void on_hub_closed(const std::string& how);
  // Call when the process of a rank on this host has exited. The detector then asks the Hub whether the rank left in
  // order. `exited_before_start`: the process had exited before this detector started; no query is sent.
  void on_local_peer_exit(int rank, Clock::time_point now, bool exited_before_start = false);
  // Does the work that is due at `now`: sends a heartbeat, declares exited local peers lost.
  void tick(Clock::time_point now);
  Clock::time_point next_tick() const;

  bool hub_gone() const { return hub_gone_; }
  bool bye_acknowledged() const { return bye_acknowledged_; }

 private:
  struct ExitedPeer {
    int rank;
    Clock::time_point deadline;
  };
  void on_frame(const Frame& frame);

  const int rank_, hub_rank_;
  const Duration heartbeat_;
  const std::shared_ptr<PeerStatus> peer_status_;
  const Log log_;
  const Callbacks callbacks_;
  FrameReader reader_{kMaxAnswerBytes};
  std::vector<ExitedPeer> exited_peers_;
  bool hub_closing_ = false, hub_gone_ = false, bye_acknowledged_ = false;
  Clock::time_point next_beat_;
};

}  // namespace esp::net
