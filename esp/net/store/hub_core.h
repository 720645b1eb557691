// HubCore: what the Hub knows and decides, without a socket: the store, the roll of ranks, who is lost, who asks whom.
// net/store/hub.h moves the bytes; tests and fuzzers feed them by hand. One thread drives it.
//
// A rank is present from its join until its bye (left) or until one of its two connections, the store's that joined and
// the watch, closes without one (lost). Once lost it is lost for good: it may not come back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "esp/base/log.h"
#include "esp/net/handshake.h"
#include "esp/net/link.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace esp::net {

inline constexpr size_t kMaxStoreBytes = size_t{64} << 20;
inline constexpr size_t kMaxParked = 1024;  // waiting gets per connection
inline constexpr size_t kMaxUnheard = 64;   // aborts kept for a rank; the first of a group is what counts

struct HubCoreOptions {
  std::string member = "rank";  // what joins, in messages
  Duration link_timeout = NetOptions().link_timeout;
};

class HubCore {
 public:
  // Bytes for connection `id`; they are taken as sent. `drop` closes it soon; `closed` is called in any case.
  using Send = std::function<void(int id, std::string bytes)>;
  using Drop = std::function<void(int id)>;

  HubCore(int size, Welcome welcome, Log log, Send send, Drop drop, HubCoreOptions options = {});

  void opened(int id, const Hello& hello);
  void received(int id, std::string_view bytes);
  void closed(int id);
  // Ranks that came with different world sizes are all refused, with what each said, once `tell_sizes` is called.
  bool sizes_differ() const { return sizes_differ_; }
  bool all_sizes_known() const;
  void tell_sizes();
  // Closes the connections of hosts that leave them unanswered for too long; warns of those that begin to.
  void check_links(const std::function<Duration(int id)>& unanswered_for);
  // Tells all watches that the Hub ends in order.
  void announce_closing();

  // All other ranks have left or are lost, or not all ever joined.
  bool finished() const;
  bool faulty() const { return faulty_; }

 private:
  enum class State { absent, present, left, lost };
  struct Member {
    State state = State::absent;
    Peer peer;
    int store_id = -1, watch_id = -1;
    uint64_t join_request = 0;
    std::string how;                   // lost: how
    std::vector<std::string> unheard;  // aborts from before its watch was there
  };
  struct Link {
    Hello hello;
    FrameReader reader{kMaxRequestBytes};
    FrameWriter writer;
    std::map<uint64_t, std::string> parked;  // waiting gets: request to key
  };

  void send(int id, Kind kind, std::string_view body);
  void reply(int id, Kind kind, uint64_t request, std::string_view rest = {});
  void refuse(int id, uint64_t request, bool usage, const std::string& why);
  bool is_rank(int rank) const { return rank >= 0 && rank < static_cast<int>(members_.size()); }

  // hub_core.cpp
  void serve_store(int id, const Frame& frame);
  void set(int id, uint64_t request, KeyValue pair);
  void get(int id, uint64_t request, const std::string& key, bool wait);
  void add(int id, uint64_t request, const Addition& addition);
  void erase(const std::string& key);
  bool keep(const std::string& key, std::string value);
  void cancel(int id, uint64_t request);

  // hub_roll.cpp
  void join(int id, uint64_t request, const Join& join);
  std::map<int, std::set<int>> claimed_sizes() const;
  std::string sizes_in_words() const;
  void complete_joins();
  std::string roll() const;
  void open_watch(int id);
  void serve_watch(int id, const Frame& frame);
  void leave(int rank);
  void lose(int rank, const std::string& how);
  void tell_watches(Kind kind, std::string_view body, int except = -1);
  void pass_on(const Abort& abort, int from);
  void put_question(int id, const Ask& ask, int asker);

  const Welcome welcome_;
  const Log log_;
  const Send send_;
  const Drop drop_;
  std::map<int, Link> links_;

  std::map<std::string, std::string> values_;
  size_t stored_bytes_ = 0;
  std::map<std::string, std::set<std::pair<int, uint64_t>>> waiting_;  // key to connections and requests

  std::vector<Member> members_;
  int num_joined_ = 0;
  bool complete_ = false;
  bool faulty_ = false;

  struct Claim {
    int rank = 0, size = 0, id = -1;
    uint64_t request = 0;
    bool told = false;
  };
  std::vector<Claim> claims_;  // of the world's size, until all have joined
  bool sizes_differ_ = false;

  const HubCoreOptions options_;
  std::map<std::string, LinkState> hosts_;  // with a connection that was unanswered
};

}  // namespace esp::net
