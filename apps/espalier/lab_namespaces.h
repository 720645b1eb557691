// Several hosts on one machine: network namespaces joined by a bridge, every link shaped. Needs root and iproute2.
//
// Host i has 10.78.0.(i+1) on its eth0; the bridge stands in a namespace of its own, so that nothing outside is
// touched. They are removed with the object; what a killed lab left behind is removed by the next one.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/lab_child.h"

namespace esp::app {

class ShapedHosts {
 public:
  // Why it cannot be done here; empty: it can be tried.
  static std::string why_not();

  // `rate` as tc writes it, for each direction of each host's link. IoError when the kernel does not let us.
  ShapedHosts(int num_hosts, const std::string& rate);
  ~ShapedHosts();
  ShapedHosts(const ShapedHosts&) = delete;
  ShapedHosts& operator=(const ShapedHosts&) = delete;

  // One process per rank, numbered host by host, told who it is as torchrun tells. Returns what each said.
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
