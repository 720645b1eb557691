// espalier lab --all: runs every experiment in a separate process and writes one page with the results.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

struct AllLabs {
  bool run_all = false;           // --all was given
  std::vector<std::string> only;  // names of the labs to run; empty: all
  std::string out;                // output folder; empty: "lab"
};

// Returns exit code 1 if a lab failed. The page is written in any case.
int run_all_labs(const AllLabs& options);

}  // namespace esp::app
