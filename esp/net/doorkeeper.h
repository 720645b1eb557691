// Doorkeeper: which caller may come in and which pending one has to go. Pure bookkeeping by source address; the
// listener asks, and nothing here touches a socket. Owned and called by the listener's thread.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "esp/base/clock.h"

namespace esp::net {

class Doorkeeper {
 public:
  static constexpr size_t kMaxPending = 64;
  static constexpr size_t kSuspectPending = 16;  // places for a source whose tokens are spent
  static constexpr double kBurst = 64;           // failures a source may have at once
  static constexpr double kPerSecond = 32;       // and again every second
  static constexpr size_t kMaxSources = 1024;

  // True when the caller may begin its handshake. Local sources share a host with us and are never turned away.
  bool admit(const std::string& source, bool local, Clock::time_point now);
  void began(const std::string& source, int id);
  // The pending caller that must go before another one from `source` may begin, if any.
  std::optional<int> evict(const std::string& source);
  void succeeded(int id);
  bool failed(int id, Clock::time_point now);  // true when its source has failed more often than it may
  size_t pending() const { return ids_.size(); }

 private:
  struct Source {
    double tokens = kBurst;
    Clock::time_point refilled{};
    bool trusted = false;
    std::list<int> pending;  // oldest first
  };
  Source& refill(const std::string& source, Clock::time_point now);
  void forget(int id);
  void trim();

  std::map<std::string, Source> sources_;
  std::map<int, std::string> ids_;
};

}  // namespace esp::net
