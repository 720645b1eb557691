// Rendezvous: how the processes of a job find each other and become a World.
//
// Every rank connects to the Hub, says who and where it is, and gets the whole table back once all have: one round trip
// per rank. Then it has a store, a listener for its peers' connections and a watch. The endpoint is the Hub's address
// (tcp://host:port) or a directory all ranks see (file:///path), in which the Hub's owner leaves the address. Ranks
// that an mpirun started can leave all of it to their MPI (mpi://openmpi, mpi://mpich): rank 0 hosts the Hub, and where
// it is, the job's name and a secret travel through MPI (net/mpi/mpi.h).
//
// Where to listen: on loopback alone when all ranks are on one host (the Hub is at a loopback address, or `local_size`
// says so); else on the interface asked for; else on the address that the route to the Hub leaves from. Never on the
// wildcard unless `net.bind_any`.
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
  std::string host_name;  // sets this host apart from others that look the same; may be empty
  Secret secret;
  std::string job;
  // Whose the endpoint's port is: this job's alone; maybe another program's (MASTER_PORT), or surely so (torchrun's own
  // store is there). Where another program has it, rank 0 takes the first free one of a fixed sequence that all ranks
  // compute, and they look there too. The handshake tells this job from any other program.
  enum class Port { own, shared, taken } port = Port::own;
  // In messages: what meets (rank, host), who hosts the Hub (empty: number 0 of them), and the option that sets the
  // deadline.
  std::string member = "rank", server, timeout_option = "start_timeout_s";
  bool encrypt = false;  // what tcp carries between ranks (net/tcp/tls.h); the same on all ranks
  NetOptions net;
  Log log;
};

// Two ranks that claim different world sizes end all of them, with what each claimed (UsageError).
// Retries names that do not resolve yet and a Hub that does not listen yet until the deadline. The World's destruction
// is orderly: bye to the Hub, and for the Hub's owner a wait (at most `net.timeout`) for the others to leave.
// Throws UsageError, CommError (refused, timeout with the ranks that are missing, lost).
std::unique_ptr<World> rendezvous(const RendezvousOptions& options, Deadline deadline);

}  // namespace esp::net
