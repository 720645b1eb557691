// All-gather and broadcast of texts, one per rank. Used for reports and traces at the end of a run.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/communicator.h"

namespace esp::train {

// Returns the texts of all ranks in rank order. `ranks` is null with a single rank. Collective.
std::vector<std::string> gather_texts(comm::Communicator* ranks, const std::string& mine);
// Returns rank 0's text on all ranks. Collective.
std::string broadcast_text(comm::Communicator* ranks, const std::string& mine);

}  // namespace esp::train
