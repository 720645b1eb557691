// Links: connections between hosts, and detection of hosts that no longer answer.
//
// A network interruption is tolerated for NetOptions::link_timeout. Linux never closes these connections by itself. It
// probes idle connections. If it supports TCP_RTO_MAX_MS (since Linux 6.15), it also retransmits at least once a
// second, so that data flows soon after the network recovers. The owner of a connection calls unanswered_time()
// periodically and decides whether the host is lost. A stopped process keeps its connection, because Linux on its host
// still answers.
#pragma once

#include <string>

#include "esp/base/clock.h"
#include "esp/base/log.h"

namespace esp::net {

constexpr Duration kLinkCheckPeriod = std::chrono::milliseconds(500);

void configure_keepalive(int fd);

// How long the remote host has left data or probes unacknowledged. Zero if it answers, or if the connection is not TCP.
Duration unanswered_time(int fd);

// The part of a host identity (net/host.h) that names the machine, for example «box».
std::string host_name(const std::string& identity);

// State of one remote host over all connections to it. Warns once when the host falls silent and once when it answers
// again.
class LinkState {
 public:
  LinkState(std::string host, Duration timeout) : host_(std::move(host)), timeout_(timeout) {}

  // `silence`: the longest unanswered time of this host's connections. Returns true if the host is lost.
  bool update(Duration silence, const Log& log);
  // Returns text such as «host box: no data for 6 s».
  std::string text() const;

 private:
  std::string host_;
  Duration timeout_, silence_ = Duration::zero();
  bool warned_ = false, lost_ = false;
};

}  // namespace esp::net
