// HubFailureDetector: the FailureDetector of a process, over one connection to the Hub and the pidfds of local peers.
//
// One thread owns the connection. It sends queued frames, records the Hub's reports in PeerStatus, and answers position
// queries even while the main thread is stuck. At the end it sends a bye, so that a finished rank does not count as
// failed. If the Hub fails, all groups fail, because further rank failures would not be reported.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "esp/net/failure_detector.h"
#include "esp/net/failure_detector_core.h"
#include "esp/net/link.h"
#include "esp/net/socket.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace esp::net {

class HubFailureDetector final : public FailureDetector {
 public:
  // `socket` comes from connect_to with Role::failure_detector, after this rank has joined. The constructor reads rank,
  // peers, peer_status, log and heartbeat of `world` and keeps no reference to `world`.
  HubFailureDetector(Socket socket, const World& world, int hub_rank);
  ~HubFailureDetector() override;

  void abort(uint64_t group, const std::vector<int>& members, const CommError& cause) override;
  void register_position(uint64_t group, const LiveCallPosition* position) override;
  void unregister_position(uint64_t group) override;
  std::vector<CallPosition> query_positions(const Group& group, Deadline deadline) override;
  std::vector<std::pair<uint64_t, CallPosition>> local_positions() override;

 private:
  struct PositionReplies {
    std::map<int, CallPosition> answers;  // key: world rank
  };

  FailureDetectorCore::Callbacks core_callbacks();
  void monitor_local_peers(const World& world);
  void post(FrameKind kind, std::string_view body);
  void run();
  void read_hub();
  void check_link();
  void flush();
  CallPosition position_in(uint64_t group);
  void stop_replies();

  const int rank_;
  const Log log_;
  const std::shared_ptr<PeerStatus> peer_status_;
  Socket socket_, wake_;

  // Used by the detector's thread only.
  FailureDetectorCore core_;
  std::vector<std::pair<int, Socket>> local_peers_;  // world rank and pidfd of each peer on this host
  LinkState hub_host_;
  Clock::time_point next_link_check_{};

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  FrameWriter writer_;
  std::string out_;
  bool stopping_ = false;
  bool replies_stopped_ = false;  // true after the Hub closed: waiting queries end without further replies
  std::map<uint64_t, const LiveCallPosition*> positions_;
  std::map<uint64_t, PositionReplies> queries_;  // key: query id
  uint64_t next_query_ = 0;

  std::thread thread_;
};

}  // namespace esp::net
