// ElasticRendezvous: connects the launchers of an elastic job. Host 0 serves it at the job's endpoint until the job
// ends. Every host that connects gets a number. Then it waits for an epoch in which it is a member.
//
// The job runs in epochs. Host 0 chooses the members of an epoch, and they do not change until the epoch ends. Each
// epoch has its own endpoint. An epoch ends when a member is lost. It also ends when another host has connected: host 0
// requests a change, the ranks stop with a checkpoint, and host 0 publishes the next epoch. Host 0 cannot be replaced:
// if it is lost, the job ends. One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/log.h"
#include "esp/net/store/hub.h"
#include "esp/net/store/hub_store.h"
#include "esp/net/world.h"

namespace esp::launch {

struct Epoch {
  int number = 0;
  std::vector<int> members;  // host numbers, in rank order
  std::string endpoint;      // host:port
  // Index of a host among the members; -1 if it is not a member.
  int member_index(int host) const;
};
std::string encode(const Epoch& epoch);
Epoch parse_epoch(const std::string& text);  // throws IoError

// Calls get(deadline). If it times out, throws a CommError with the time that this host has waited for host 0.
std::string wait_for_first_host(const std::function<std::string(Deadline)>& get, Duration timeout);

struct ElasticRendezvousOptions {
  std::string endpoint;  // host:port
  bool first = false;    // true on host 0, which serves the rendezvous
  std::string job;
  net::Secret secret;
  net::NetOptions net;
  Log log;
};

class ElasticRendezvous {
 public:
  // Connects to host 0; waits for it until the deadline. UsageError, CommError.
  ElasticRendezvous(const ElasticRendezvousOptions& options, Deadline deadline);

  int host_number() const { return host_number_; }  // number of this host; host 0 has number 0
  const std::string& address() const { return address_; }
  int num_hosts() const;
  // Called by host 0 only.
  void publish_epoch(const Epoch& epoch);
  void request_change(int epoch);
  // Called by every host. CommError if host 0 is lost.
  bool change_requested(int epoch) const;
  Epoch wait_for_epoch(int epoch, Duration timeout);

 private:
  std::unique_ptr<net::Hub> hub_;  // null except on host 0
  std::unique_ptr<net::HubStore> store_;
  std::string address_;  // address of host 0 as seen from this host
  int host_number_ = 0;
};

}  // namespace esp::launch
