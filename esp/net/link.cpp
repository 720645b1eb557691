#include "esp/net/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

namespace esp::net {
namespace {

constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS of <linux/tcp.h>, which is newer than the build's Linux headers
constexpr Duration kWarnAfter = std::chrono::seconds(3);
// minimum of unanswered probes or retransmissions before a link counts as silent; the answer to a single one may still
// be in transit
constexpr int kUnansweredAtLeast = 2;

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void configure_keepalive(int fd) {
  int on = 1, idle_s = 2, between_s = 1, again_ms = 1000;
  // TCP_USER_TIMEOUT is longer than every wait, because Linux would also count the time in which a slow receiver keeps
  // its TCP window closed.
  int never_ms = 24 * 3600 * 1000;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &never_ms, sizeof never_ms);
  setsockopt(fd, IPPROTO_TCP, kRtoMaxMs, &again_ms, sizeof again_ms);
}

Duration unanswered_time(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return Duration::zero();
  if (info.tcpi_probes < kUnansweredAtLeast && info.tcpi_retransmits < kUnansweredAtLeast) return Duration::zero();
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

std::string host_name(const std::string& identity) {
  return identity.substr(0, identity.rfind('#'));
}

bool LinkState::update(Duration silence, const Log& log) {
  if (lost_) return true;
  const bool silent = silence >= std::min(kWarnAfter, timeout_);
  if (silent) silence_ = silence;
  if (silence >= timeout_) return lost_ = true;
  if (silent && !warned_)
    log.warn("{}; waiting up to {:g} s for it to answer (link_timeout_s)", text(), seconds(timeout_));
  if (!silent && warned_) log.warn("host {} answers again after {:.1f} s", host_, seconds(silence_));
  warned_ = silent;
  return false;
}

std::string LinkState::text() const {
  return fmt::format("host {}: no data for {:.0f} s", host_, seconds(silence_));
}

}  // namespace esp::net
