// A communicator that moves no data and counts: bytes, messages and rounds per algorithm, as the real one would send.
// For planning and for tests. Arguments are checked as usual; outputs keep their contents. Calls never wait, so a
// single process can run a whole program.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/comm/tiers.h"

namespace esp::comm {

// `link` is the link model `auto` uses.
std::unique_ptr<Communicator> make_fake(int rank, int size, const CommOptions& options = {},
                                        const AlphaBeta& link = {});

}  // namespace esp::comm
