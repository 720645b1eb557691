// Reads rank, world size and rendezvous address from the environment variables of a launcher (torchrun, Slurm, Open
// MPI, MPICH).
//
// A table has one row per launcher; the first row that applies is used. If a row's variables are incomplete, the error
// names the missing ones. Two rows that contradict each other are an error too, because otherwise a job of N ranks
// would silently run as N jobs of one rank. Pure function of the given variables; `apps` passes the process
// environment.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace esp::launch {

using Environment = std::map<std::string, std::string>;

struct Placement {
  std::string launcher;  // the launcher that was detected: torchrun, slurm, openmpi, mpich or none
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  std::string master_address;  // empty if the launcher does not set it (Open MPI and MPICH without MASTER_ADDR)
  int master_port = 0;
};

// UsageError if the variables are incomplete, invalid or contradictory.
Placement read_environment(const Environment& environment);

// The variables of all rows. A launcher removes them from the inherited environment before it sets its own.
std::vector<std::string_view> placement_variables();

// Expands a Slurm host list: "node[01-03,7],gpu1" becomes node01 node02 node03 node7 gpu1.
std::vector<std::string> expand_hosts(std::string_view list);

// The environment variables of this process.
Environment process_environment();

}  // namespace esp::launch
