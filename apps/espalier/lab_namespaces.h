// Several hosts on one machine: network namespaces joined by a bridge, with every link shaped. Needs root and iproute2.
//
// Host i has 10.78.0.(i+1) on its eth0; the bridge is in a separate namespace, so the machine's network is untouched.
// The destructor removes them; leftovers of a killed lab are removed by the next one.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/lab_child.h"

namespace esp::app {

class ShapedHosts {
 public:
  // Why it cannot run here; empty: it can be tried.
  static std::string why_not();

  // `rate` in tc's syntax, for each direction of each host's link. IoError when the kernel refuses.
  ShapedHosts(int num_hosts, const std::string& rate);
  ~ShapedHosts();
  ShapedHosts(const ShapedHosts&) = delete;
  ShapedHosts& operator=(const ShapedHosts&) = delete;

  // One process per rank, numbered host by host, with the environment of torchrun. Returns the output of each.
  std::vector<Ended> run(const std::vector<std::string>& command, int ranks_per_host, Duration limit) const;
  uint64_t sent_bytes(int host) const;  // by eth0 so far, headers included

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
