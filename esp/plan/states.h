// Training states: which rank holds which parameters, and the bytes of their states; exact, by category, for every
// stage.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

// The division of a model into pp·v pieces. V-shaped schedules fold the second half back, so that the first stage holds
// the first and the last piece; all others are cyclic.
struct Pieces {
  int stages = 1, chunks = 1;
  bool folded = false;
  std::vector<int> layers;  // of each piece
  std::vector<int> first;   // first layer of each piece
  int count() const { return stages * chunks; }
  int stage_of(int piece) const {
    if (!folded || piece < stages) return piece % stages;
    return 2 * stages - 1 - piece;
  }
};
Pieces pieces_of(const ModelShape& shape, const Policy& policy);
// Layers of each piece where the last has fewer, by the arithmetic of its head: "redistributed" layers.
std::vector<int> balanced_layers(const ModelShape& shape, const Policy& policy);

// Parameters on one rank: those replicated over data-parallel ranks, and those of its experts.
struct HeldParameters {
  double dense = 0, expert = 0;
  HeldParameters& operator+=(const HeldParameters& other) {
    dense += other.dense;
    expert += other.expert;
    return *this;
  }
};
HeldParameters held_layer(const ModelShape& shape, const Policy& policy, int64_t layer);
std::vector<HeldParameters> held_by_stage(const ModelShape& shape, const Policy& policy);

// Ranks over which the states of a dense (an expert) parameter are sharded, and over which its gradient is summed.
double shard_ranks(const Policy& policy);
double expert_shard_ranks(const Policy& policy);
double expert_copies(const Policy& policy);
int expert_tensor(const Policy& policy);

// Bytes per parameter by category, before sharding.
struct StateBytes {
  double parameter = 2, gradient = 4, optimizer = 12;
};
StateBytes state_bytes(const Policy& policy);
// parameter, gradient, optimizer (and host, file) of one stage.
Memory states_of(const HeldParameters& held, const Policy& policy);

}  // namespace esp::plan
