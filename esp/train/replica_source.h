// Chooses the rank whose replica all ranks restore after a rank failure. The choice is a pure function of the status of
// every rank, so all ranks make the same choice. The fault simulation runs the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace esp::train {

struct ReplicaSource {
  int rank = -1;               // rank that has the chosen replica; -1: no rank has a replica
  int64_t step = -1;           // step of that replica
  std::vector<int> newcomers;  // ranks that were restarted
  int num_survivors = 0;
};

// The status of a rank has two numbers: the step of its replica (-1: none), and 1 if the rank kept its process. Chooses
// the newest replica. If several ranks have it, the lowest rank is chosen.
inline constexpr size_t kReplicaStatusFields = 2;
ReplicaSource choose_replica_source(std::span<const int64_t> statuses);

}  // namespace esp::train
