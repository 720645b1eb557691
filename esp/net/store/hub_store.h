// HubStore: the store as a client of the Hub, over one authenticated connection. Any number of threads may call at
// once; there is no thread of its own: of those that wait for an answer one reads for all.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "esp/net/socket.h"
#include "esp/net/store.h"
#include "esp/net/store/client_core.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace esp::net {

class HubStore final : public Store {
 public:
  struct Options {
    Duration timeout = NetOptions().start_timeout;  // of the calls that take no deadline
    Duration link_timeout = NetOptions().link_timeout;
    std::string server = "rank 0";  // who hosts the Hub, in messages
  };
  // `socket` comes from connect_to with Role::store. Reads the Hub's welcome.
  HubStore(Socket socket, Options options, Deadline deadline);

  const Welcome& welcome() const { return core_.welcome(); }
  int fd() const { return socket_.fd(); }
  // The Hub has closed the connection, or what it sent could not be read.
  bool broken();

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key) override;
  int64_t add(std::string_view key, int64_t delta) override;
  void erase(std::string_view key) override;

  // Publishes this rank's Peer and returns everybody's, by rank, once all have joined. CommError(timeout) says who is
  // missing.
  std::vector<Peer> join(const Join& mine, Deadline deadline);

 private:
  using Slot = ClientCore::Slot;

  // The answer to one request; nothing at the deadline.
  std::optional<Slot> call(Kind kind, std::string_view body, Deadline deadline);
  Slot ask(Kind kind, std::string_view body, std::optional<Deadline> deadline = {});
  bool wait_for(short events, Deadline deadline);
  uint64_t post(Kind kind, std::string_view body, Slot* slot, Deadline deadline);
  void pump(std::unique_lock<std::mutex>& lock, Deadline deadline);

  Socket socket_;
  const Options options_;

  std::mutex write_mutex_;  // guards the writer and what goes out on the socket; taken before mutex_
  FrameWriter writer_;

  std::mutex mutex_;  // guards all below, and what comes in
  std::condition_variable changed_;
  ClientCore core_;
  bool reading_ = false;  // a thread is reading for all
};

}  // namespace esp::net
