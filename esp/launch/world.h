// A whole local world: a hub in this process on loopback, any free port, and N ranks that meet there. And the other
// side: how a rank, however it was started, joins the world its environment describes.
#pragma once

#include <memory>

#include "esp/launch/environment.h"
#include "esp/launch/local.h"
#include "esp/net/rendezvous.h"
#include "esp/net/store/hub.h"

namespace esp::launch {

// The job goes first: the hub outlives every rank.
struct LocalWorld {
  std::unique_ptr<net::Hub> hub;
  std::unique_ptr<LocalJob> job;
};

// Fills in secret, job name and meeting place of `options`, makes the hub and starts the ranks.
LocalWorld start_local_world(LocalOptions options, const Log& log = {});

// ESPALIER_START_TIMEOUT_S and ESPALIER_LINK_TIMEOUT_S, as espalier launch hands them on. UsageError.
void read_timeouts(const Environment& environment, net::NetOptions& net);

// What this process's environment says about joining: placement, secret, job name, timeouts. MASTER_PORT may be another
// program's. Ranks of an mpirun that are told no
// place (MASTER_ADDR) meet through its MPI, and so do those whose messages go `over_mpi`. UsageError when a world of
// more than one has no meeting place or no secret.
net::RendezvousOptions join_options(const Environment& environment, bool over_mpi = false);

}  // namespace esp::launch
