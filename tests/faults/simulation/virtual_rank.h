// One process of a rank on the virtual network: what apps/espalier/joined.cpp, net/rendezvous.cpp and the trainer's
// loop do in their order, as a machine of states, with the product's decisions in it: ClientCore, WatchCore, Fate, the
// meaning of the launcher's words, and whose memory all go on from. Its work is a chain of states, one per step, and
// each step needs all ranks of its world.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "esp/launch/control.h"
#include "esp/net/fate.h"
#include "esp/net/store/client_core.h"
#include "esp/net/watch_core.h"
#include "tests/faults/simulation/truth.h"
#include "tests/faults/simulation/virtual_hub.h"
#include "tests/faults/simulation/virtual_time.h"

namespace esp::sim {

class VirtualRank;

// What the ranks of a job share without knowing it: where hubs are, and who is where.
struct Place {
  Simulation& simulation;
  Truth& truth;
  const Broken& broken;
  int num_ranks = 1;
  int64_t num_steps = 1, snapshot_every = 5;
  std::map<int, VirtualHub*> hubs;               // by port
  std::map<int, VirtualRank*> ranks;             // by process
  std::map<std::pair<int, int>, int> under_way;  // letters, by the processes they go from and to
  bool disk_is_slow = false;
  bool see_each_other_end = true;  // as ranks of one host do; else only the hub tells
  std::function<void(const std::string&)> note = [](const std::string&) {};  // for whoever plays a seed again
};

class VirtualRank {
 public:
  // The launcher's end of the line: what this rank says, and how it ended (code; 128+n for signals).
  struct Line {
    std::function<void(const std::string& text)> say;
    std::function<void(int code)> ended;
  };
  VirtualRank(Place& place, int rank, int round, const std::string& job, int port, Line line);

  const ProcessPtr& process() const { return process_; }
  void hear(const std::string& text);  // a word of the launcher's
  void fail(int code);                 // ends it by itself
  void terminate();                    // SIGTERM
  std::vector<LinkPtr> links() const;
  // From another rank of the same world, numbered in the order it was sent.
  void receive(const std::string& world, int from, const std::string& tag, int64_t number, uint64_t state);

 private:
  enum class State { starting, meeting, working, exchanging, leaving, awaiting, ended };
  struct Letter {
    int64_t number = 0;
    uint64_t state = 0;
  };
  struct World {
    int round = 0;
    std::string name;  // as the hub says
    std::shared_ptr<net::Fate> fate = std::make_shared<net::Fate>();
    std::vector<net::Peer> peers;
    LinkPtr store, line;
    net::ClientCore client;
    net::ClientCore::Slot joined;
    net::FrameWriter to_store, to_watch;
    std::unique_ptr<net::WatchCore> watch;
    std::map<std::string, std::map<int, Letter>> letters;  // by tag and sender
    std::map<int, Time> sent_until;                        // letters to a rank arrive in order
    bool entered = false;
  };
  struct Early {
    int from = 0;
    std::string tag;
    Letter letter;
  };
  using Then = std::function<void()>;

  // virtual_rank.cpp: coming together and parting
  void meet(const std::string& job, int port);
  void call(net::Role role, Time deadline, std::function<void(const LinkPtr&)> connected);
  void read_store();
  void join();
  void open_watch();
  void tick_watch();
  void formed();
  void not_met();
  void leave(Then then);
  void close_world();
  void await();
  void heed();
  void exit(int code);
  void note(const std::string& what) const;

  // virtual_work.cpp: what it does in a world
  void begin_work();
  void go_on_from(const std::vector<int64_t>& said);
  void begin_step();
  void snapshot();
  void tell(const std::string& tag, int64_t number, uint64_t state);  // all others
  void wait(const std::string& tag, std::vector<int> from, Then then);
  void look();
  void lost(const std::string& why);
  std::vector<int> others() const;

  Place& place_;
  Simulation& simulation_;
  const int rank_;
  const Line line_;
  const ProcessPtr process_;
  State state_ = State::starting;
  int round_;  // as launch::Control counts it
  std::string job_;
  int port_ = 0;
  Time meet_by_ = 0;
  bool newcomer_ = true;  // not yet been in a world
  std::unique_ptr<World> world_;
  uint64_t life_ = 0;  // of the world and of what is waited for: what was planned in an earlier one is void
  std::deque<std::string> words_;
  int exit_code_ = 128 + 9;  // unless it ends by itself

  int64_t step_ = 0;
  uint64_t value_ = 0;
  bool settled_ = false, survivor_ = false;
  int64_t kept_step_ = -1;
  uint64_t kept_value_ = 0;

  uint64_t num_waits_ = 0;
  std::map<std::string, std::vector<Early>> early_;  // by world, of those that were there before
  std::string waiting_tag_;
  std::vector<int> waiting_for_;
  Then waiting_then_;
  Then leaving_then_;
};

}  // namespace esp::sim
