// Diagnosis of mismatched, missing and late calls: pure functions from the observed call positions to the error every
// member gets. Ranks in messages are world ranks.
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

// «rank 1 called all_reduce of 1000 f32, sum; rank 3 called all_reduce of 1001 f32, sum (call #7)». `mine` describes
// this rank's call.
CommError mismatch_error(const Mismatch& mismatch, const net::Group& group, const std::string& mine);

// Errors that can be proven while a call still waits, before its deadline: a member is in another call with the same
// number; or, in an irregular exchange, one of `awaited` (group ranks whose message has not arrived) sends nothing to
// this rank. None: the ranks may just be slow.
std::optional<CommError> difference_error(const net::Tag& mine, const net::Group& group,
                                          std::span<const net::Standing> positions, std::span<const int> awaited);
// The `count` field of a position in an irregular exchange: a bit per receiving member, as far as there are bits.
uint64_t receivers_of(std::span<const size_t> send_counts);

// The timeout error of a call. `mine` is this rank's position; `waits_for` is the group rank whose message had not
// arrived, or -1. Diagnosed in this order: a member in another call, a member that does not answer, the member furthest
// behind, the peer waited for. `one_peer`: a message between two ranks, so only that peer can be the cause.
CommError deadline_error(const net::Tag& mine, Duration timeout, const net::Group& group,
                         std::span<const net::Standing> positions, int waits_for, bool one_peer);

}  // namespace esp::comm
