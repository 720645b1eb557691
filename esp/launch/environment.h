// Who am I? Reads rank, size and meeting place from the variables a launcher leaves in the environment.
//
// One table row per launcher; the first row that is there wins. A row that is half there is refused by naming what is
// missing, and two rows that tell different stories are refused: a job that starts as N jobs of one is worse than none.
// A pure function of the map it is given; `apps` hands it the process environment.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace esp::launch {

using Environment = std::map<std::string, std::string>;

struct Placement {
  std::string launcher;  // the row used: torchrun, slurm, openmpi, mpich, none
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  std::string master_address;  // empty: the launcher names none (Open MPI, MPICH without MASTER_ADDR)
  int master_port = 0;
};

// Throws UsageError.
Placement read_environment(const Environment& environment);

// The variables of every row, so that a launcher can clear what it inherited before it sets its own.
std::vector<std::string_view> placement_variables();

// "node[01-03,7],gpu1" is node01 node02 node03 node7 gpu1.
std::vector<std::string> expand_hosts(std::string_view list);

// This process's environment.
Environment process_environment();

}  // namespace esp::launch
