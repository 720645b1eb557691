// ConnectionLimiter: connection limit and rate limit for connections that are not authenticated yet, per source
// address. A token bucket per source counts failed handshakes.
//
// Pure bookkeeping without sockets; owned and called by the listener's thread (net/listener.h).
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "esp/base/clock.h"

namespace esp::net {

class ConnectionLimiter {
 public:
  static constexpr size_t kMaxPending = 64;
  // maximum of pending connections for a source that has no tokens left
  static constexpr size_t kMaxPendingThrottled = 16;
  // capacity of a source's token bucket; each failed handshake costs one token
  static constexpr double kFailureBurst = 64;
  static constexpr double kFailuresPerSecond = 32;  // tokens that a source regains per second
  static constexpr size_t kMaxSources = 1024;

  // True if the connection may begin its handshake. Local sources (this host) are always admitted.
  bool admit(const std::string& source, bool local, Clock::time_point now);
  void record_start(const std::string& source, int id);
  // Returns the id of the pending connection that must be closed before another one from `source` may begin, if any.
  std::optional<int> evict(const std::string& source);
  void record_success(int id);
  bool record_failure(int id, Clock::time_point now);  // true if the source has used up its tokens
  size_t pending() const { return ids_.size(); }

 private:
  struct Source {
    double tokens = kFailureBurst;
    Clock::time_point refilled{};
    bool trusted = false;
    std::list<int> pending;  // ids of the pending connections, oldest first
  };
  Source& refill(const std::string& source, Clock::time_point now);
  void forget(int id);
  void trim();

  std::map<std::string, Source> sources_;
  std::map<int, std::string> ids_;
};

}  // namespace esp::net
