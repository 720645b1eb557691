#include "esp/train/replica_source.h"

namespace esp::train {

ReplicaSource choose_replica_source(std::span<const int64_t> statuses) {
  ReplicaSource newest;
  for (size_t at = 0; at < statuses.size(); at += kReplicaStatusFields) {
    const int rank = static_cast<int>(at / kReplicaStatusFields);
    if (statuses[at] > newest.step) {
      newest.step = statuses[at];
      newest.rank = rank;
    }
    newest.num_survivors += static_cast<int>(statuses[at + 1]);
    if (statuses[at + 1] == 0) newest.newcomers.push_back(rank);
  }
  return newest;
}

}  // namespace esp::train
