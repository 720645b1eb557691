// All-reduce: every rank holds the whole model and sums its gradients with the others', bucket by bucket while backward
// runs (Li et al. 2020, PyTorch Distributed). Buckets are views of the gradients; nothing is copied unless another type
// is wanted on the wire.
#pragma once

#include "esp/sync/whole_copies.h"

namespace esp::sync {

std::unique_ptr<Strategy> make_all_reduce(const Setup& setup);
std::unique_ptr<WholeCopies> make_bucketed(const Setup& setup);  // buckets cut beforehand, whoever is talked to

}  // namespace esp::sync
