// Who keeps the others waiting: from where every rank stands to a rank, a call and a sentence. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "esp/comm/patience.h"
#include "esp/net/watch.h"

namespace esp::comm {

// Where a rank stands, as its stall watch says when asked.
struct Whereabouts {
  bool answers = false;
  bool gone = false;     // it has left in order: nobody waits for it
  bool waiting = false;  // inside a call, for a while now
  net::Tag call;         // waiting: that one
  Phase phase = Phase::start;
  int64_t number = 0;                    // of the step
  Duration in_phase = Duration::zero();  // not waiting: how long
};

// As the Standing that travels, and back.
net::Tag packed(const Whereabouts& whereabouts);
Whereabouts unpacked(const net::Standing& standing);

struct Stall {
  std::vector<int> ranks;    // to blame
  std::vector<int> waiting;  // for them
  bool silent = false;       // they do not answer; otherwise they do, and have not come
  uint64_t group = 0;        // of the call that the lowest waiting rank is in
  net::Tag call;
  Phase phase = Phase::step;
  int64_t number = 0;
  Duration waited = Duration::zero();
  std::string text;  // all of it, for people
};

// Of all ranks, seen by rank `me`. Those that do not answer are to blame; else those that wait for nobody while others
// do. None: nobody waits, or everybody does.
std::optional<Stall> judge(int me, std::span<const Whereabouts> all);

// «gradients of blocks.1.mlp.up.weight to head»; empty when nothing is known.
using Purpose = std::function<std::string(uint64_t group, const net::Tag& call)>;
std::string describe(const Stall& stall, std::span<const Whereabouts> all, const std::string& purpose);

// «0-2,5»
std::string name_ranks(std::span<const int> ranks);

}  // namespace esp::comm
