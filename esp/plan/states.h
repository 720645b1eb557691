// Who holds which parameters and how many bytes their training states take: exact, by category, for every stage.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

// The cut of a model in pp·v pieces. V-shaped schedules fold the second half back, so that the first stage holds the
// first piece and the last one; all others go round.
struct Pieces {
  int stages = 1, chunks = 1;
  bool folded = false;
  std::vector<int> layers;  // of each piece
  std::vector<int> first;   // layer each begins with
  int count() const { return stages * chunks; }
  int stage_of(int piece) const {
    if (!folded || piece < stages) return piece % stages;
    return 2 * stages - 1 - piece;
  }
};
Pieces pieces_of(const Shape& shape, const Policy& policy);
// Layers of each piece where the last gives up as many as its head is worth, by arithmetic: "redistributed" layers.
std::vector<int> balanced_layers(const Shape& shape, const Policy& policy);

// Parameters one rank holds of a thing, those every data-parallel rank has and those of its experts.
struct Held {
  double dense = 0, expert = 0;
  Held& operator+=(const Held& other) {
    dense += other.dense;
    expert += other.expert;
    return *this;
  }
};
Held held_layer(const Shape& shape, const Policy& policy, int64_t layer);
std::vector<Held> held_by_stage(const Shape& shape, const Policy& policy);

// Ranks over which a dense (an expert) parameter's states are divided, and over which its gradient is summed.
double shard_ranks(const Policy& policy);
double expert_shard_ranks(const Policy& policy);
double expert_copies(const Policy& policy);
int expert_tensor(const Policy& policy);

// Bytes per parameter by category, before any division.
struct StateBytes {
  double parameter = 2, gradient = 4, optimizer = 12;
};
StateBytes state_bytes(const Policy& policy);
// parameter, gradient, optimizer (and host, file) of one stage.
Memory states_of(const Held& held, const Policy& policy);

}  // namespace esp::plan
