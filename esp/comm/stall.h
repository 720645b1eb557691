// Stall diagnosis: from the status of every rank to the ranks that stall the others, the call, and a message. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "esp/comm/stall_timeout.h"
#include "esp/net/watch.h"

namespace esp::comm {

// Status of a rank, as reported by its stall detector.
struct RankStatus {
  bool answers = false;
  bool gone = false;     // it left in order; no rank waits for it
  bool waiting = false;  // in a call for longer than the detector's threshold
  net::Tag call;         // the call, if waiting
  Phase phase = Phase::start;
  int64_t number = 0;                    // of the step
  Duration in_phase = Duration::zero();  // if not waiting
};

// Encoded in a Standing for the network, and decoded.
net::Tag encode_status(const RankStatus& status);
RankStatus decode_status(const net::Standing& standing);

struct Stall {
  std::vector<int> ranks;    // the stalled ranks
  std::vector<int> waiting;  // the ranks waiting for them
  bool silent = false;       // they do not answer; else they answer but have not entered the call
  uint64_t group = 0;        // of the call the lowest waiting rank is in
  net::Tag call;
  Phase phase = Phase::step;
  int64_t number = 0;
  Duration waited = Duration::zero();
  std::string text;  // the message for the log
};

// Status of all ranks as seen by rank `me`. The stalled ranks are those that do not answer; if all answer, those that
// wait for no rank while others wait. None: no rank waits, or all wait.
std::optional<Stall> diagnose_stall(int me, std::span<const RankStatus> all);

// «gradients of blocks.1.mlp.up.weight to head»; empty when nothing is known.
using CallLabeler = std::function<std::string(uint64_t group, const net::Tag& call)>;
std::string describe(const Stall& stall, std::span<const RankStatus> all, const std::string& label);

// «0-2,5»
std::string name_ranks(std::span<const int> ranks);

}  // namespace esp::comm
