// All-reduce strategy: every rank holds the whole model and sums its gradients over the ranks, bucket by bucket, while
// backward runs (PyTorch DDP, Li et al. 2020). Gradient buckets are views of the gradients; they are copied only when
// cast to another wire type.
#pragma once

#include "esp/sync/replicated_strategy.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_all_reduce(const Setup& setup);
// all-reduce with fixed gradient buckets, as a base for strategies that replace its communicator
std::unique_ptr<ReplicatedStrategy> make_bucketed(const Setup& setup);

}  // namespace esp::sync
