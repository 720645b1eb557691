// Rendezvous: the processes of a job find each other and build a World.
//
// Every rank connects to the Hub, sends its rank and address, and receives the complete table of peers once all ranks
// have joined: one round trip per rank. It then has a store, a listener for peer connections and a failure detector.
// The endpoint is the Hub's address (tcp://host:port) or a directory visible to all ranks (file:///path) in which the
// Hub's owner publishes the address. With mpirun, MPI can do all of it (mpi://openmpi, mpi://mpich): rank 0 hosts the
// Hub, and its address, the job name and a secret travel through MPI (net/mpi/mpi.h).
//
// Listen address: loopback only if all ranks are on one host (the Hub has a loopback address, or `local_size` equals
// `size`); else the configured interface; else the source address of the route to the Hub. Never the wildcard address
// unless `net.bind_any`.
#pragma once

#include <memory>
#include <string>

#include "esp/base/clock.h"
#include "esp/base/log.h"
#include "esp/net/world.h"

namespace esp::net {

struct RendezvousOptions {
  int rank = 0, size = 1;
  std::string endpoint;  // "tcp://host:port", "tcp://[ipv6]:port", "file:///directory", "mpi://…"; empty for one rank
  bool host_hub = false;  // this process runs the Hub (rank 0, when no launcher does)
  int local_size = 0;     // ranks on this host if known, else 0; equal to `size` means one host
  std::string host_name;  // distinguishes hosts with equal identity; may be empty
  Secret secret;
  std::string job;
  // Which program owns the endpoint's port: `own` = this job only; `shared` = perhaps another program (MASTER_PORT);
  // `taken` = certainly another program (torchrun's own store). If another program has the port, rank 0 takes the first
  // free port of a fixed sequence. All ranks compute this sequence and try the same ports. The handshake distinguishes
  // this job from other programs.
  enum class Port { own, shared, taken } port = Port::own;
  // Names used in messages: the name of a member (rank or host), the place where the Hub runs (empty: member 0), and
  // the option that sets the deadline.
  std::string member = "rank", server, timeout_option = "start_timeout_s";
  bool encrypt = false;  // TLS on tcp between ranks (net/tcp/tls.h); must be equal on all ranks
  NetOptions net;
  Log log;
};

// Until the deadline it retries names that do not resolve and a Hub that is not listening yet. If ranks report
// different world sizes, all ranks fail with a UsageError that lists the sizes. The World's destructor shuts down in
// order: it sends a bye to the Hub, and the Hub's owner waits (at most `net.timeout`) until the others have left.
//
// Throws UsageError or CommError (refused; timeout with the missing ranks; lost).
std::unique_ptr<World> rendezvous(const RendezvousOptions& options, Deadline deadline);

}  // namespace esp::net
