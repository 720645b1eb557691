// Shard boundaries: where one rank's elements end and another's begin.
#pragma once

#include "esp/comm/call.h"
#include "esp/sync/buckets.h"

namespace esp::sync {

// Over all buckets, each split into `size` chunks. With one rank buckets are boundaries too: its ranges are listed by
// bucket.
inline std::vector<int64_t> shard_boundaries(const std::vector<Bucket>& buckets, int size) {
  std::vector<int64_t> cuts;
  for (const Bucket& bucket : buckets)
    for (int k = 0; k < size; ++k)
      cuts.push_back(bucket.begin +
                     static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(bucket.count()), size, k).offset));
  return cuts;
}

}  // namespace esp::sync
