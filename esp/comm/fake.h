// Fake communicator: moves no data. It counts the bytes, messages and rounds that the real communicator would use, per
// algorithm. Used for planning and in tests. Arguments are checked as usual; outputs are not written. Calls never wait,
// so a single process can run a whole program.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/comm/tiers.h"

namespace esp::comm {

// `link`: the link model that `auto` uses.
std::unique_ptr<Communicator> make_fake(int rank, int size, const CommOptions& options = {},
                                        const AlphaBeta& link = {});

}  // namespace esp::comm
