// HubStore: the store as a client of the Hub, over one authenticated connection. Thread-safe. It owns no thread: one of
// the callers that wait for a reply reads for all of them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "esp/net/socket.h"
#include "esp/net/store.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"
#include "esp/net/store/store_client_core.h"

namespace esp::net {

class HubStore final : public Store {
 public:
  struct Options {
    Duration timeout = NetOptions().start_timeout;  // limit of calls that have no deadline parameter
    Duration link_timeout = NetOptions().link_timeout;
    std::string server = "rank 0";  // where the Hub runs, for messages
  };
  // `socket` comes from connect_to with Role::store. The constructor waits for the Hub's hub_info frame.
  HubStore(Socket socket, Options options, Deadline deadline);

  const HubInfo& hub_info() const { return core_.hub_info(); }
  int fd() const { return socket_.fd(); }
  // True if the Hub has closed the connection or sent invalid data.
  bool broken();

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key) override;
  int64_t add(std::string_view key, int64_t delta) override;
  void erase(std::string_view key) override;

  // Publishes this rank's Peer and returns the Peers of all ranks, by rank, once all have joined. CommError(timeout)
  // names the missing ranks.
  std::vector<Peer> join(const JoinRequest& mine, Deadline deadline);

 private:
  using Slot = StoreClientCore::Slot;

  // Sends one request and returns its reply; empty at the deadline.
  std::optional<Slot> call(FrameKind kind, std::string_view body, Deadline deadline);
  Slot request(FrameKind kind, std::string_view body, std::optional<Deadline> deadline = {});
  bool wait_for(short events, Deadline deadline);
  uint64_t post(FrameKind kind, std::string_view body, Slot* slot, Deadline deadline);
  void read_once(std::unique_lock<std::mutex>& lock, Deadline deadline);

  Socket socket_;
  const Options options_;

  std::mutex write_mutex_;  // guards the writer and writes to the socket; locked before mutex_
  FrameWriter writer_;

  std::mutex mutex_;  // guards the members below and reads from the socket
  std::condition_variable changed_;
  StoreClientCore core_;
  bool reading_ = false;  // true while one thread reads for all waiting threads
};

}  // namespace esp::net
