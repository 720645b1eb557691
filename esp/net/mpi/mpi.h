// mpi: the same messages over the MPI whose mpirun started the job, so that a cluster's own launcher and fabric carry
// them. Per message one MPI message with our 64-byte header, and the payload behind it in slices (net/mpi/mpi.cpp).
// MPI cannot wait with a deadline, so sleeping is looking again, with pauses that grow to a millisecond.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "esp/net/transport.h"

namespace esp::net {

// Which MPI started this process, by the variables its mpirun sets: "openmpi", "mpich", or empty. `is_set` may be
// getenv.
std::string_view mpi_flavour(const std::function<bool(const char* variable)>& is_set);

// The world of everyone mpirun started: ranks are MPI's, rank 0 hosts the Hub, and where it is, the job's name and its
// secret travel through MPI. Collective. Throws UsageError when the plug-in is missing, CommError as rendezvous does.
std::unique_ptr<World> mpi_world(std::string_view flavour, const NetOptions& options, const Log& log,
                                 bool encrypt = false);

bool mpi_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_mpi(const World& world, const Group& group);

}  // namespace esp::net
