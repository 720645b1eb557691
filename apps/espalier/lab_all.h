// espalier lab --all: every experiment in a separate process, and one page with the results.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

struct AllLabs {
  bool wanted = false;
  std::vector<std::string> only;  // empty: all
  std::string out;                // empty: lab
};

// Exit code 1 when a lab failed; the page is always written.
int run_all_labs(const AllLabs& options);

}  // namespace esp::app
