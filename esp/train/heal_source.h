// Whose memory all ranks go on from after some were lost: a pure function of what every rank says of itself, so that
// all decide alike, and so that the simulation of faults decides by the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace esp::train {

struct Healed {
  int source = -1;             // the rank whose replica all have now; -1: there was none
  int64_t step = -1;           // that it is of
  std::vector<int> newcomers;  // ranks that were started again
  int num_survivors = 0;
};

// Said by rank: the step of the replica it has (-1: none), and 1 if it has kept its process. The newest replica is
// taken, and of equal ones the lowest rank's.
inline constexpr size_t kHealWords = 2;
Healed source_of(std::span<const int64_t> said);

}  // namespace esp::train
