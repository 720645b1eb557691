// What went wrong among ranks, in words: pure functions from what was seen to the error every member gets. Ranks in the
// messages are world ranks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/comm/executor.h"
#include "esp/net/watch.h"
#include "esp/net/world.h"

namespace esp::comm {

// «rank 1 called all_reduce of 1000 f32, sum; rank 3 called all_reduce of 1001 f32, sum (call #7)». `mine` is what this
// rank called, in words.
CommError mismatch_error(const Mismatch& mismatch, const net::Group& group, const std::string& mine);

// What standings prove while a call still waits, however long its deadline: a member in another call under the same
// number; or, in an irregular exchange, one of `awaited` (group ranks whose message has not come) that sends nothing
// here. None: they may just be slow.
std::optional<CommError> difference_error(const net::Tag& mine, const net::Group& group,
                                          std::span<const net::Standing> standings, std::span<const int> awaited);
// The count of a standing in an irregular exchange: a bit for every member that something is sent to, as far as there
// are bits.
uint64_t receivers_of(std::span<const size_t> send_counts);

// A call that was not done in time. `mine` is where this rank stands; `waits_for` the group rank whose message had not
// come, or -1. Blames, in this order: a member in another call, one that does not answer, one that is behind, the peer
// waited for. `one_peer`: a message between two ranks, so only that peer can be to blame.
CommError deadline_error(const net::Tag& mine, Duration timeout, const net::Group& group,
                         std::span<const net::Standing> standings, int waits_for, bool one_peer);

}  // namespace esp::comm
