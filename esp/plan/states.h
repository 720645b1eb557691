// Training states: which rank holds which parameters, and the exact bytes of their states, by category, for every
// stage.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

// Division of a model into pp·v pieces. V-shaped schedules (folded) assign the first and the last piece to the first
// stage. All other schedules assign the pieces to the stages in turn.
struct PipelinePieces {
  int stages = 1, chunks = 1;
  bool folded = false;
  std::vector<int> layers;  // layers of each piece
  std::vector<int> first;   // first layer of each piece
  int count() const { return stages * chunks; }
  int stage_of(int piece) const {
    if (!folded || piece < stages) return piece % stages;
    return 2 * stages - 1 - piece;
  }
};
PipelinePieces pipeline_pieces(const ModelShape& shape, const Policy& policy);
// Number of layers of each piece if the last piece gets fewer layers to compensate for its head ("redistributed"
// layers).
std::vector<int> balanced_layers(const ModelShape& shape, const Policy& policy);

// Number of parameters on one rank. dense: parameters that data-parallel ranks replicate; expert: parameters of the
// rank's experts.
struct RankParameters {
  double dense = 0, expert = 0;
  RankParameters& operator+=(const RankParameters& other) {
    dense += other.dense;
    expert += other.expert;
    return *this;
  }
};
RankParameters layer_parameters_on_rank(const ModelShape& shape, const Policy& policy, int64_t layer);
std::vector<RankParameters> parameters_by_stage(const ModelShape& shape, const Policy& policy);

// shard_ranks: ranks over which the states of a dense parameter are sharded; expert_shard_ranks: the same for an expert
// parameter. expert_replicas: ranks over which an expert gradient is summed. expert_tensor: tensor ranks per expert.
double shard_ranks(const Policy& policy);
double expert_shard_ranks(const Policy& policy);
double expert_replicas(const Policy& policy);
int expert_tensor(const Policy& policy);

// Bytes of states per parameter by category, before sharding.
struct StateBytes {
  double parameter = 2, gradient = 4, optimizer = 12;
};
StateBytes state_bytes(const Policy& policy);
// Bytes of parameters, gradients and optimizer states of one rank; with offload also host and file. Other categories
// stay 0.
Memory states_of(const RankParameters& held, const Policy& policy);

}  // namespace esp::plan
