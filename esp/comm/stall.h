// Stall diagnosis: computes, from the status of every rank, which ranks stall the others, in which call, and the log
// message. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "esp/comm/stall_timeout.h"
#include "esp/net/failure_detector.h"

namespace esp::comm {

// Status of a rank as reported by its stall detector.
struct RankStatus {
  bool answers = false;
  bool exited = false;   // the rank has exited or is lost; no rank waits for it
  bool waiting = false;  // the rank has been in a call for longer than the detector's threshold
  net::Tag call;         // the current call, if waiting
  Phase phase = Phase::start;
  int64_t number = 0;                    // step number
  Duration in_phase = Duration::zero();  // time since the phase began, if not waiting
};

// Encodes a status as a call position for the network, and decodes it.
net::Tag encode_status(const RankStatus& status);
RankStatus decode_status(const net::CallPosition& position);

struct Stall {
  std::vector<int> ranks;    // the stalled ranks
  std::vector<int> waiting;  // the ranks that wait for them
  bool silent = false;       // true: the stalled ranks do not answer; false: they answer but have not entered the call
  uint64_t group = 0;        // group of the call in which the lowest-numbered waiting rank waits
  net::Tag call;
  Phase phase = Phase::step;
  int64_t number = 0;
  Duration waited = Duration::zero();
  std::string text;  // the log message
};

// Returns which ranks stall the others. `all` is the status of all ranks as seen by rank `me`. The stalled ranks are
// those that do not answer. If all answer, they are the ranks that do not wait while others wait. Returns nullopt if
// all ranks answer and either all of them wait or none waits.
std::optional<Stall> diagnose_stall(int me, std::span<const RankStatus> all);

// Function that returns a label for a call, for example «gradients of blocks.1.mlp.up.weight to head»; empty if
// unknown.
using CallLabeler = std::function<std::string(uint64_t group, const net::Tag& call)>;
std::string describe(const Stall& stall, std::span<const RankStatus> all, const std::string& label);

// Returns text such as «0-2,5».
std::string format_ranks(std::span<const int> ranks);

}  // namespace esp::comm
