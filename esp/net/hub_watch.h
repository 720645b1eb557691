// HubWatch: the Watch of a process, over one connection to the Hub and the pidfds of the peers on this host.
//
// One thread owns the connection: it sends what others post, records in Fate what the Hub tells, answers questions
// about where this rank stands while the main thread may be stuck, and says bye at the end, so that a rank that
// finishes is not taken for lost. The Hub's death dooms every group, for nobody would hear of further losses.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "esp/net/link.h"
#include "esp/net/socket.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"
#include "esp/net/watch.h"
#include "esp/net/watch_core.h"

namespace esp::net {

class HubWatch final : public Watch {
 public:
  // `socket` comes from connect_to with Role::watch, after this rank has joined. Of `world` rank, peers, fate, log and
  // the heartbeat are used; it is not kept.
  HubWatch(Socket socket, const World& world, int hub_rank);
  ~HubWatch() override;

  void abort(uint64_t group, const std::vector<int>& members, const CommError& cause) override;
  void enroll(uint64_t group, const LiveStanding* standing) override;
  void withdraw(uint64_t group) override;
  std::vector<Standing> ask(const Group& group, Deadline deadline) override;
  std::vector<std::pair<uint64_t, Standing>> here() override;

 private:
  struct Question {
    std::map<int, Standing> answers;  // by world rank
  };

  WatchCore::Owner as_owner();
  void watch_neighbours(const World& world);
  void post(Kind kind, std::string_view body);
  void run();
  void read_hub();
  void check_link();
  void flush();
  Standing standing_in(uint64_t group);
  void deafen();

  const int rank_;
  const Log log_;
  const std::shared_ptr<Fate> fate_;
  Socket socket_, wake_;

  // The watch's thread only.
  WatchCore core_;
  std::vector<std::pair<int, Socket>> neighbours_;  // rank and pidfd
  LinkState hub_host_;
  Clock::time_point next_link_check_{};

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  FrameWriter writer_;
  std::string out_;
  bool stopping_ = false;
  bool deaf_ = false;  // no answer will come any more
  std::map<uint64_t, const LiveStanding*> enrolled_;
  std::map<uint64_t, Question> questions_;  // by id
  uint64_t next_question_ = 0;

  std::thread thread_;
};

}  // namespace esp::net
