// Hub: the server of the store and the failure detector of one job, hosted by rank 0 or by the launcher. One
// authenticated port (net/listener.h) and one thread that owns all connections. A client that sends partial requests or
// does not read its replies delays no other client. A get that must wait is queued, not polled.
//
// The process that owns the Hub destroys it last. The destructor waits up to `linger` for the other ranks to leave (at
// most 1 s after a rank failure, 5 s after a world size mismatch), then announces its orderly end.
#pragma once

#include <memory>
#include <string>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/net/world.h"

namespace esp::net {

struct HubOptions {
  std::string address = "127.0.0.1";  // numeric IPv4 or IPv6 address to listen on
  int port = 0;                       // port to listen on; 0: any free port
  int size = 1;
  int hub_rank = -1;  // rank that hosts the Hub; -1: the launcher
  std::string job;    // job name; callers must know it (handshake)
  Secret secret;
  Duration linger = Duration::zero();
  Duration link_timeout = NetOptions().link_timeout;
  std::string member = "rank";  // name of a member in messages: rank or host
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
