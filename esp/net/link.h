// Links: connections between hosts, and whether the host at the other end still answers.
//
// An interruption of the network is tolerated for NetOptions::link_timeout. The kernel never ends such a connection by
// itself, probes it while it is idle and, where it can (TCP_RTO_MAX_MS, Linux 6.15), sends again at least once a
// second, so that data flows soon after the network is back. The owner of a connection looks at it now and then and
// decides. A process that is merely stopped keeps its connection: its kernel answers for it.
#pragma once

#include <string>

#include "esp/base/clock.h"
#include "esp/base/log.h"

namespace esp::net {

constexpr Duration kLinkCheckPeriod = std::chrono::milliseconds(500);

void tolerate_interruptions(int fd);

// How long the host at the other end has left data or probes unanswered. Zero: it answers, or this is no TCP
// connection.
Duration unanswered_for(int fd);

// «box» of a host's identity (net/host.h).
std::string host_name(const std::string& identity);

// One host as seen over one or more connections. Warns once when it falls silent and once when it answers again.
class LinkState {
 public:
  LinkState(std::string host, Duration timeout) : host_(std::move(host)), timeout_(timeout) {}

  // `silence`: the longest of its connections. True when the host is lost.
  bool update(Duration silence, const Log& log);
  // «host box: no data for 6 s»
  std::string text() const;

 private:
  std::string host_;
  Duration timeout_, silence_ = Duration::zero();
  bool warned_ = false, lost_ = false;
};

}  // namespace esp::net
