// Hub: the server behind the store and the watch of one job, hosted by rank 0 or by the launcher. One authenticated
// port (net/listener.h) and one thread that owns every connection; a client that sends half a request, or does not read
// its answers, delays nobody. A get that has to wait is parked, not polled.
//
// The process that owns the Hub destroys it last: the destructor waits up to `linger` for the other ranks to leave
// (a second at most once one was lost, five where world sizes differ), then tells them that it ends in order.
#pragma once

#include <memory>
#include <string>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/net/world.h"

namespace esp::net {

struct HubOptions {
  std::string address = "127.0.0.1";  // numeric
  int port = 0;                       // 0: any free one
  int size = 1;
  int hub_rank = -1;  // the rank that hosts it; -1: the launcher
  std::string job;    // what callers must prove they are of
  Secret secret;
  Duration linger = Duration::zero();
  Duration link_timeout = NetOptions().link_timeout;
  std::string member = "rank";  // what joins, in messages: rank or host
  Log log;
};

class Hub {
 public:
  explicit Hub(const HubOptions& options);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  const std::string& address() const;
  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  Duration linger_;
};

}  // namespace esp::net
