// LocalWorld: a hub in this process on loopback (any free port), and N ranks on this machine that connect to it.
// join_options: reads from the environment variables of any launcher how a rank joins its world.
#pragma once

#include <memory>

#include "esp/launch/environment.h"
#include "esp/launch/local.h"
#include "esp/net/rendezvous.h"
#include "esp/net/store/hub.h"

namespace esp::launch {

// The job is the last member and is destroyed first, so the hub outlives every rank.
struct LocalWorld {
  std::unique_ptr<net::Hub> hub;
  std::unique_ptr<LocalJob> job;
};

// Fills in the secret, the job name and the rendezvous address in `options`. Then creates the hub and starts the ranks.
LocalWorld start_local_world(LocalOptions options, const Log& log = {});

// Reads ESPALIER_START_TIMEOUT_S and ESPALIER_LINK_TIMEOUT_S, which `espalier launch` sets for its ranks. UsageError.
void read_timeouts(const Environment& environment, net::NetOptions& net);

// Returns how this process joins its world: placement, secret, job name and timeouts from the environment variables.
// MASTER_PORT may belong to another program. Ranks use MPI as their rendezvous if `over_mpi` is set, or if mpirun
// started them without MASTER_ADDR. UsageError if a world of more than one rank has no rendezvous address or no secret.
net::RendezvousOptions join_options(const Environment& environment, bool over_mpi = false);

}  // namespace esp::launch
