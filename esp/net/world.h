// World: one rank's view of the job after rendezvous: the addresses of all peers, the store, and the known failures.
//
// Built by net/rendezvous.h (processes) or net/inproc/threads.h (threads of one process). The caller owns it. Every
// transport and communicator borrows it and must be destroyed first. Const members never change after the rendezvous.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/net/peer_status.h"
#include "esp/net/store.h"

namespace esp::net {

// A job secret: 32 bytes, never printed. All copies share memory that core dumps leave out and that the last copy
// wipes.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string bytes);  // wipes `bytes`
  static Secret random();
  std::string_view bytes() const;

 private:
  class Pages;
  std::shared_ptr<const Pages> pages_;  // null: no secret
};

struct NetOptions {
  // name or CIDR of the interface to listen on; empty: loopback if all ranks are on one host, else chosen by route
  std::string interface;
  bool bind_any = false;                              // listen on the wildcard address (all interfaces)
  int streams_per_peer = 2;                           // TCP connections per peer for large messages
  bool payload_checksum = false;                      // tcp: CRC-32C also over payloads; must be equal on all ranks
  Duration timeout = std::chrono::seconds(60);        // default deadline of one collective
  Duration start_timeout = std::chrono::minutes(10);  // limit of every wait while ranks start and connect to each other
  Duration link_timeout = std::chrono::seconds(30);   // a host that does not answer for this long is lost (net/link.h)
  Duration heartbeat = std::chrono::milliseconds(500);  // period of the failure detector's heartbeat
};

struct Peer {
  std::string host;     // host identity: equal strings mean the same machine and shared memory
  std::string address;  // numeric IPv4 or IPv6 listen address for peers; empty for threads
  int port = 0;
  int pid = 0;
  uint64_t process = 0;  // two ranks with equal numbers are threads of one process
};

// Ranks inside a group are numbered 0..size-1; `members` holds their world ranks in that order.
struct Group {
  uint64_t id = 0;  // equal on all members, unique in the job
  std::vector<int> members;
  int rank = 0;
  int size() const { return static_cast<int>(members.size()); }
};

class Hub;              // defined in net/store/hub.h
class FailureDetector;  // defined in net/failure_detector.h
class Listener;         // defined in net/listener.h
class MpiLibrary;       // defined in net/mpi/library.h

struct World {
  int rank = 0;
  int size = 1;
  std::string job;          // random id of the job, so that ranks of two jobs never join each other
  std::vector<Peer> peers;  // index: world rank
  Secret secret;
  NetOptions options;
  Log log;
  std::shared_ptr<Hub> hub;  // set in the process that hosts the Hub; destroyed last
  std::shared_ptr<Store> store;
  std::shared_ptr<PeerStatus> peer_status;
  std::shared_ptr<FailureDetector> failure_detector;  // null when all ranks are threads of one process
  std::shared_ptr<Listener> listener;                 // accepts authenticated connections of peers; null for threads
  std::shared_ptr<void> thread_fabric;                // ThreadFabric shared by the threads of one process; else null
  std::shared_ptr<MpiLibrary> mpi;                    // set if mpirun started this process (net/mpi/mpi.h)

  // number of communicators created over the whole world so far; equal on every rank
  mutable uint64_t num_root_groups = 0;

  bool same_host(int a, int b) const { return peers[a].host == peers[b].host; }
  bool same_process(int a, int b) const { return peers[a].process == peers[b].process; }
  Group world_group() const;
};

}  // namespace esp::net
