// World: one rank's view of the job after rendezvous: who is where, how to reach the store, what has gone wrong.
//
// Built by net/rendezvous.h (processes) or net/inproc/threads.h (threads of one process). Owned by the caller; every
// transport and communicator borrows it and must be destroyed first. Const members never change after the rendezvous.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/net/fate.h"
#include "esp/net/store.h"

namespace esp::net {

// A job secret: 32 bytes, wiped on destruction, never printed.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string bytes) : bytes_(std::move(bytes)) {}
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();
  static Secret random();
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

struct NetOptions {
  std::string interface;     // name or CIDR of the interface to listen on; empty: loopback if one host, else the route
  bool bind_any = false;     // listen on the wildcard address
  int streams_per_peer = 2;  // TCP connections per peer for large messages
  bool payload_checksum = false;  // tcp: CRC-32C over every payload, not only over headers; the same on all ranks
  Duration timeout = std::chrono::seconds(60);          // default deadline of one collective
  Duration start_timeout = std::chrono::minutes(10);    // every wait while ranks start and find each other
  Duration link_timeout = std::chrono::seconds(30);     // a host that does not answer for so long is lost (net/link.h)
  Duration heartbeat = std::chrono::milliseconds(500);  // watch period
};

struct Peer {
  std::string host;     // same string: same machine and same shared memory
  std::string address;  // numeric IPv4 or IPv6 on which it listens for peers; empty for threads
  int port = 0;
  int pid = 0;
  uint64_t process = 0;  // same number: threads of one process
};

// Ranks inside a group are numbered 0..size-1; `members` holds their world ranks in that order.
struct Group {
  uint64_t id = 0;  // agreed by all members, unique in the job
  std::vector<int> members;
  int rank = 0;
  int size() const { return static_cast<int>(members.size()); }
};

class Hub;         // net/store/hub.h
class Watch;       // net/watch.h
class Listener;    // net/listener.h
class MpiLibrary;  // net/mpi/library.h

struct World {
  int rank = 0;
  int size = 1;
  std::string job;          // random id; two jobs can never merge
  std::vector<Peer> peers;  // by world rank
  Secret secret;
  NetOptions options;
  Log log;
  std::shared_ptr<Hub> hub;  // when this process hosts it; goes last
  std::shared_ptr<Store> store;
  std::shared_ptr<Fate> fate;
  std::shared_ptr<Watch> watch;        // null when all ranks are threads of one process
  std::shared_ptr<Listener> listener;  // accepts authenticated connections of peers; null for threads
  std::shared_ptr<void> in_process;    // fabric shared by the threads of one process; null otherwise
  std::shared_ptr<MpiLibrary> mpi;     // when an mpirun started us (net/mpi/mpi.h)

  mutable uint64_t num_root_groups = 0;  // communicators made over everyone so far, the same on every rank

  bool same_host(int a, int b) const { return peers[a].host == peers[b].host; }
  bool same_process(int a, int b) const { return peers[a].process == peers[b].process; }
  Group everyone() const;
};

}  // namespace esp::net
