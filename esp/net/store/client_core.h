// ClientCore: the answering half of a store's client, without a socket: which request an answer belongs to, the Hub's
// welcome, and when nothing more can be believed. net/store/hub_store.h moves the bytes and waits; the simulation of
// faults does the same on a clock of its own. Its owner guards it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"

namespace esp::net {

class ClientCore {
 public:
  // `server`: who hosts the Hub, in messages.
  explicit ClientCore(std::string server = "rank 0") : server_(std::move(server)) {}

  struct Slot {
    bool done = false;
    Kind kind = Kind::done;
    std::string rest;
  };

  // Whoever waits for `request` lends the place for its answer until it forgets it.
  void expect(uint64_t request, Slot* slot) { slots_[request] = slot; }
  void forget(uint64_t request) { slots_.erase(request); }

  // Whether nothing more is to be read or sent: closed, or what came could not be read.
  bool broken() const { return broken_; }
  void received(std::string_view bytes);
  void closed(std::string how = "closed its connection") {
    broken_ = true;
    how_ = std::move(how);
  }

  const Welcome& welcome() const { return welcome_; }
  // The error that whoever still waits ends with. Only when broken.
  [[noreturn]] void throw_closed() const;

 private:
  void deliver(const Frame& frame);

  FrameReader reader_{kMaxAnswerBytes};
  std::map<uint64_t, Slot*> slots_;  // by request
  Welcome welcome_;
  const std::string server_;
  bool broken_ = false;
  std::string how_;
  bool garbled_ = false;  // what came could not be read
};

}  // namespace esp::net
