// StoreClientCore: the receiving half of a store client, without a socket. It assigns replies to requests, keeps the
// hub_info frame, and detects an unusable connection. net/store/hub_store.h does the I/O; the fault simulation
// (tests/faults/simulation) drives it with a virtual clock. Not thread-safe: the owner locks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace esp::net {

class StoreClientCore {
 public:
  // `server`: where the Hub runs, for messages.
  explicit StoreClientCore(std::string server = "rank 0") : server_(std::move(server)) {}

  struct Slot {
    bool done = false;
    FrameKind kind = FrameKind::done;
    std::string rest;
  };

  // Registers the slot for the reply to `request`. The caller owns the slot and keeps it alive until forget().
  void expect(uint64_t request, Slot* slot) { slots_[request] = slot; }
  void forget(uint64_t request) { slots_.erase(request); }

  // Whether the connection is unusable: closed, or invalid data was received.
  bool broken() const { return broken_; }
  void received(std::string_view bytes);
  void closed(std::string how = "closed its connection") {
    broken_ = true;
    how_ = std::move(how);
  }

  const HubInfo& hub_info() const { return hub_info_; }
  // Throws the error for requests that have no reply yet. Call only if broken().
  [[noreturn]] void throw_closed() const;

 private:
  void deliver(const Frame& frame);

  FrameReader reader_{kMaxAnswerBytes};
  std::map<uint64_t, Slot*> slots_;  // key: request number
  HubInfo hub_info_;
  const std::string server_;
  bool broken_ = false;
  std::string how_;
  bool corrupt_ = false;  // true if invalid data was received
};

}  // namespace esp::net
