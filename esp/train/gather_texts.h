// A text of every rank, brought to all: what reports and traces are made of at the end of a run.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/communicator.h"

namespace esp::train {

// In rank order; null: one rank alone. Collective.
std::vector<std::string> gather_texts(comm::Communicator* ranks, const std::string& mine);
// The first rank's.
std::string broadcast_text(comm::Communicator* ranks, const std::string& mine);

}  // namespace esp::train
