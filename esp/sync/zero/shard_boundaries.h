// Shard boundaries: the elements at which the shard of one rank ends and that of the next rank begins.
#pragma once

#include "esp/comm/call.h"
#include "esp/sync/buckets.h"

namespace esp::sync {

// The boundaries of all buckets, each split into `size` chunks. With a single rank the bucket ends are boundaries too,
// because the rank's ranges are listed by bucket.
inline std::vector<int64_t> shard_boundaries(const std::vector<GradientBucket>& buckets, int size) {
  std::vector<int64_t> cuts;
  for (const GradientBucket& bucket : buckets)
    for (int k = 0; k < size; ++k)
      cuts.push_back(bucket.begin +
                     static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(bucket.count()), size, k).offset));
  return cuts;
}

}  // namespace esp::sync
