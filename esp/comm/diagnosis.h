// Diagnosis of mismatched, missing and late calls. Pure functions compute, from the observed call positions, the error
// that every member reports. Ranks in messages are world ranks.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/comm/executor.h"
#include "esp/net/failure_detector.h"
#include "esp/net/world.h"

namespace esp::comm {

// Returns an error such as «rank 1 called all_reduce of 1000 f32, sum; rank 3 called all_reduce of 1001 f32, sum (call
// #7)». `mine` describes this rank's call.
CommError mismatch_error(const Mismatch& mismatch, const net::Group& group, const std::string& mine);

// Returns an error if a call that still waits can never succeed: a member is in a different call with the same number,
// or (all_to_all_v) a rank of `awaited` sends nothing to this rank. `awaited`: group ranks whose message has not
// arrived. Returns nullopt if nothing is proven; the other ranks may just be slow.
std::optional<CommError> difference_error(const net::Tag& mine, const net::Group& group,
                                          std::span<const net::CallPosition> positions, std::span<const int> awaited);
// The `count` field of a call position in all_to_all_v: bit i is set if this rank sends data to member i (at most 64
// members).
uint64_t receivers_of(std::span<const size_t> send_counts);

// The error of a call that timed out. It names the first cause found, in this order: a member in a different call, a
// member that does not answer, the member furthest behind, the missing peer. `mine`: this rank's position.
// `missing_peer`: the group rank whose message has not arrived, or -1. `one_peer`: the call is a message between two
// ranks, so only that peer can be the cause.
CommError deadline_error(const net::Tag& mine, Duration timeout, const net::Group& group,
                         std::span<const net::CallPosition> positions, int missing_peer, bool one_peer);

}  // namespace esp::comm
