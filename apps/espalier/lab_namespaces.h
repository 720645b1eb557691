// ShapedHosts: several simulated hosts on one machine. Each host is a network namespace; a bridge connects them, and
// the rate of each link is limited. Needs root and iproute2.
//
// Host i has the address 10.78.0.(i+1) on its eth0. The bridge is in a separate namespace, so the machine's network
// does not change. The destructor removes the namespaces. If a lab is killed, the next lab removes its namespaces.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/lab_child.h"

namespace esp::app {

class ShapedHosts {
 public:
  // Reason why network namespaces cannot be used on this machine; empty: they probably can.
  static std::string unavailable_reason();

  // `rate`, in tc's syntax, limits each direction of each host's link. IoError: Linux rejects a setting.
  ShapedHosts(int num_hosts, const std::string& rate);
  ~ShapedHosts();
  ShapedHosts(const ShapedHosts&) = delete;
  ShapedHosts& operator=(const ShapedHosts&) = delete;

  // Starts `ranks_per_host` processes on every host, with ranks numbered host by host and torchrun's environment
  // variables. Returns the output of each.
  std::vector<ChildResult> run(const std::vector<std::string>& command, int ranks_per_host, Duration limit) const;
  uint64_t sent_bytes(int host) const;  // bytes sent on the host's eth0 so far, headers included

 private:
  std::string name(int host) const;
  std::string address(int host) const;
  void make(int num_hosts, const std::string& rate);
  void remove() noexcept;

  std::string prefix_;
  int num_hosts_ = 0;
  std::vector<std::string> made_;
};

}  // namespace esp::app
