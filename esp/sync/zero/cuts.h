// Where one rank's part of the elements ends and another's begins.
#pragma once

#include "esp/comm/call.h"
#include "esp/sync/buckets.h"

namespace esp::sync {

// Over all buckets, each cut into `size` chunks. Buckets of one rank alone are cuts too: what it owns is listed by
// bucket.
inline std::vector<int64_t> cuts_between(const std::vector<Bucket>& buckets, int size) {
  std::vector<int64_t> cuts;
  for (const Bucket& bucket : buckets)
    for (int k = 0; k < size; ++k)
      cuts.push_back(bucket.begin +
                     static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(bucket.count()), size, k).offset));
  return cuts;
}

}  // namespace esp::sync
