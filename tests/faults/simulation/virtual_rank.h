// One process of a rank on the virtual network, as a state machine. It follows apps/espalier/process_group.cpp,
// net/rendezvous.cpp and the trainer's loop. Product code makes all decisions: StoreClientCore, FailureDetectorCore,
// PeerStatus, next_round_action and choose_replica_source. Training is simulated as a chain of states, one per step;
// each step needs all ranks of the world.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "esp/launch/control.h"
#include "esp/net/failure_detector_core.h"
#include "esp/net/peer_status.h"
#include "esp/net/store/store_client_core.h"
#include "tests/faults/simulation/invariant_checker.h"
#include "tests/faults/simulation/virtual_hub.h"
#include "tests/faults/simulation/virtual_time.h"

namespace esp::sim {

class VirtualRank;

// State shared by all processes of one simulated job, for example its hubs and ranks.
struct SimulatedJob {
  Simulation& simulation;
  InvariantChecker& invariants;
  const InjectedBugs& bugs;
  int num_ranks = 1;
  int64_t num_steps = 1, snapshot_every = 5;
  std::map<int, VirtualHub*> hubs;               // port → hub
  std::map<int, VirtualRank*> ranks;             // process id → rank
  std::map<std::pair<int, int>, int> in_flight;  // (sender, receiver) process ids → number of messages in flight
  bool disk_is_slow = false;
  // true: ranks of one host detect a peer's exit directly; false: only the hub reports it
  bool detect_local_exits = true;
  std::function<void(const std::string&)> note = [](const std::string&) {};  // writes a log line (option --log)
};

class VirtualRank {
 public:
  // The launcher's end of the control channel. It receives this rank's messages and its exit code (128+n for signal n).
  struct ControlChannelEnd {
    std::function<void(const std::string& text)> send;
    std::function<void(int code)> ended;
  };
  VirtualRank(SimulatedJob& shared, int rank, int round, const std::string& job, int port,
              ControlChannelEnd control_channel);

  const ProcessPtr& process() const { return process_; }
  void receive_from_launcher(const std::string& text);  // `text` is an encoded NextRound message
  void fail(int code);                                  // the rank exits with this code after an internal error
  void terminate();                                     // simulates SIGTERM
  std::vector<LinkPtr> links() const;
  // Call when a message from another rank of the same world arrives. `number` counts the sender's messages.
  void receive(const std::string& world, int from, const std::string& tag, int64_t number, uint64_t state);

 private:
  enum class State { starting, joining, working, exchanging, leaving, awaiting, ended };
  struct Message {
    int64_t number = 0;
    uint64_t state = 0;
  };
  struct World {
    int round = 0;
    std::string name;  // name of the world, from the hub's handshake reply
    std::shared_ptr<net::PeerStatus> peer_status = std::make_shared<net::PeerStatus>();
    std::vector<net::Peer> peers;
    LinkPtr store, detector_link;
    net::StoreClientCore client;
    net::StoreClientCore::Slot joined;
    net::FrameWriter to_store, to_detector;
    std::unique_ptr<net::FailureDetectorCore> failure_detector;
    std::map<std::string, std::map<int, Message>> messages;  // tag → sender → message
    // receiver → arrival time of the last message, so that messages to a rank arrive in order
    std::map<int, Time> sent_until;
    bool entered = false;
  };
  struct EarlyMessage {
    int from = 0;
    std::string tag;
    Message message;
  };
  using Continuation = std::function<void()>;

  // Joining and leaving worlds: implemented in virtual_rank.cpp.
  void join_round(const std::string& job, int port);
  void connect_to_hub(net::Role role, Time deadline, std::function<void(const LinkPtr&)> connected);
  void read_store();
  void join();
  void open_failure_detector();
  void tick_failure_detector();
  void on_formed();
  void on_join_failed();
  void leave(Continuation then);
  void close_world();
  void wait_for_next_round();
  void process_launcher_messages();
  void exit(int code);
  void note(const std::string& what) const;

  // Training in a world: implemented in virtual_work.cpp.
  void begin_work();
  void resume_from(const std::vector<int64_t>& statuses);
  void begin_step();
  void snapshot();
  void send_to_all(const std::string& tag, int64_t number, uint64_t state);  // sends to all other ranks of the world
  void wait(const std::string& tag, std::vector<int> from, Continuation then);
  void check_failures();
  void lost(const std::string& why);
  std::vector<int> others() const;

  SimulatedJob& shared_;
  Simulation& simulation_;
  const int rank_;
  const ControlChannelEnd control_channel_;
  const ProcessPtr process_;
  State state_ = State::starting;
  int round_;  // counted as in launch::ControlChannel
  std::string job_;
  int port_ = 0;
  Time join_deadline_ = 0;
  bool newcomer_ = true;  // true until this process has joined its first world
  std::unique_ptr<World> world_;
  // Incremented when the world or a pending wait changes. Events of earlier generations are ignored.
  uint64_t generation_ = 0;
  std::deque<std::string> launcher_messages_;
  int exit_code_ = 128 + 9;  // the code for SIGKILL, unless the rank exits by itself

  int64_t step_ = 0;
  uint64_t value_ = 0;
  bool has_state_ = false, survivor_ = false;
  int64_t replica_step_ = -1;
  uint64_t replica_value_ = 0;

  uint64_t num_waits_ = 0;
  // world → messages from ranks that entered it before this rank
  std::map<std::string, std::vector<EarlyMessage>> early_messages_;
  std::string waiting_tag_;
  std::vector<int> waiting_for_;
  Continuation waiting_then_;
  Continuation leaving_then_;
};

}  // namespace esp::sim
