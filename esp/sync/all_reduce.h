// All-reduce strategy: every rank holds the whole model and sums its gradients over the ranks, bucket by bucket, while
// backward runs (Li et al. 2020, PyTorch Distributed). Buckets are views of the gradients; they are copied only when
// cast to another wire type.
#pragma once

#include "esp/sync/replicated_strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_all_reduce(const Setup& setup);
std::unique_ptr<ReplicatedStrategy> make_bucketed(const Setup& setup);  // fixed buckets, for any communicator

}  // namespace esp::sync
