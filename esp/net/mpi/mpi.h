// mpi: messages over the MPI library of the mpirun that started the job, so that a cluster's launcher and fabric can be
// used. Each message is one MPI message with a 64-byte header, followed by the payload in slices (net/mpi/mpi.cpp). MPI
// cannot wait with a deadline, so sleep polls with pauses that grow to a millisecond.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "esp/net/transport.h"

namespace esp::net {

// Detects the MPI that started this process, from the variables that its mpirun sets: "openmpi", "mpich", or empty.
// `is_set` may be getenv.
std::string_view mpi_flavour(const std::function<bool(const char* variable)>& is_set);

// The world of all ranks that mpirun started. Ranks are numbered as in MPI. Rank 0 hosts the Hub, and its address, the
// job name and the secret travel through MPI. Collective. Throws UsageError if the plug-in is missing, and CommError
// like rendezvous().
std::unique_ptr<World> mpi_world(std::string_view flavour, const NetOptions& options, const Log& log,
                                 bool encrypt = false);

bool mpi_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_mpi(const World& world, const Group& group);

}  // namespace esp::net
