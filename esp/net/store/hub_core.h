// HubCore: state and decisions of the Hub, without sockets: the store, the membership of ranks, rank failures, position
// queries. net/store/hub.h does the I/O; tests and fuzzers call it directly. Driven by one thread.
//
// A rank is present from its join until its bye (state `left`), or until one of its two connections (store and failure
// detector) closes without a bye (state `lost`). A lost rank stays lost and may not rejoin.
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
inline constexpr size_t kMaxWaitingGets = 1024;  // limit per connection
// limit of the aborts stored for a rank; only the first abort of each group has an effect
inline constexpr size_t kMaxUndeliveredAborts = 64;

struct HubCoreOptions {
  std::string member = "rank";  // name of a member in messages: rank or host
  Duration link_timeout = NetOptions().link_timeout;
};

class HubCore {
 public:
  // `send` queues bytes for connection `id` and never fails. `drop` closes the connection soon. The owner calls
  // `closed` for every connection that ends.
  using Send = std::function<void(int id, std::string bytes)>;
  using Drop = std::function<void(int id)>;

  HubCore(int size, HubInfo hub_info, Log log, Send send, Drop drop, HubCoreOptions options = {});

  void opened(int id, const HandshakeRequest& request);
  void received(int id, std::string_view bytes);
  void closed(int id);
  // True if ranks have reported different world sizes. reject_sizes() then refuses all of them with the list of sizes.
  bool sizes_differ() const { return sizes_differ_; }
  bool all_sizes_known() const;
  void reject_sizes();
  // Closes the connections of hosts that have been unresponsive for too long; warns about hosts that become
  // unresponsive.
  void check_links(const std::function<Duration(int id)>& unanswered_time);
  // Announces the Hub's orderly end on all failure detector connections.
  void announce_closing();

  // True if every other rank has left or is lost, or if not all ranks ever joined.
  bool finished() const;
  bool failed() const { return failed_; }

 private:
  enum class State { absent, present, left, lost };
  struct Member {
    State state = State::absent;
    Peer peer;
    int store_id = -1, detector_id = -1;
    uint64_t join_request = 0;
    std::string how;                              // if lost: the reason
    std::vector<std::string> undelivered_aborts;  // aborts received before the rank's failure detector connected
  };
  struct Connection {
    HandshakeRequest request;
    FrameReader reader{kMaxRequestBytes};
    FrameWriter writer;
    std::map<uint64_t, std::string> waiting_gets;  // key: request number; value: key of the store
  };

  void send(int id, FrameKind kind, std::string_view body);
  void reply(int id, FrameKind kind, uint64_t request, std::string_view rest = {});
  void refuse(int id, uint64_t request, bool usage, const std::string& why);
  bool is_rank(int rank) const { return rank >= 0 && rank < static_cast<int>(members_.size()); }

  // Implemented in hub_core.cpp.
  void serve_store(int id, const Frame& frame);
  void set(int id, uint64_t request, KeyValue pair);
  void get(int id, uint64_t request, const std::string& key, bool wait);
  void add(int id, uint64_t request, const AddRequest& add_request);
  void erase(const std::string& key);
  bool store_value(const std::string& key, std::string value);
  void cancel(int id, uint64_t request);

  // Implemented in hub_membership.cpp.
  void join(int id, uint64_t request, const JoinRequest& join);
  std::map<int, std::set<int>> reported_sizes() const;
  std::string describe_sizes() const;
  void complete_joins();
  std::string missing_ranks() const;
  void open_detector(int id);
  void serve_detector(int id, const Frame& frame);
  void leave(int rank);
  void lose(int rank, const std::string& how);
  void broadcast(FrameKind kind, std::string_view body, int except = -1);
  void forward_abort(const AbortMessage& abort, int from);
  void forward_query(int id, const PositionQuery& query, int asker);

  const HubInfo hub_info_;
  const Log log_;
  const Send send_;
  const Drop drop_;
  std::map<int, Connection> connections_;

  std::map<std::string, std::string> values_;
  size_t stored_bytes_ = 0;
  // for each awaited key of the store: the (connection, request) pairs that wait for it
  std::map<std::string, std::set<std::pair<int, uint64_t>>> waiting_;

  std::vector<Member> members_;
  int num_joined_ = 0;
  bool complete_ = false;
  bool failed_ = false;

  struct ReportedSize {
    int rank = 0, size = 0, id = -1;
    uint64_t request = 0;
    bool rejected = false;
  };
  std::vector<ReportedSize> reported_;  // world sizes that the ranks reported; kept until all ranks have joined
  bool sizes_differ_ = false;

  const HubCoreOptions options_;
  std::map<std::string, LinkState> hosts_;  // key: host; only hosts that have had an unresponsive connection
};

}  // namespace esp::net
