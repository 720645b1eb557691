// Irregular exchanges: every rank publishes what it sends to and expects from each peer before it enters the call, and
// every rank compares all pairs, so that all of them name the same two ranks.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/fused/fused.h"

namespace esp::comm {

void Fused::publish_parcels(const Call& call) {
  size_t element = size_of(call.dtype);
  Parcel* parcels = parcels_of(rank());
  for (size_t k = 0; k < sources_.size(); ++k)
    parcels[k] = {call.send_counts[k] * element, call.send_offsets[k] * element, call.recv_counts[k] * element};
}

// Returns the longest parcel between two different ranks.
size_t Fused::check_parcels() const {
  size_t longest = 0;
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      uint64_t sent = parcels_of(from)[to].send_bytes, expected = parcels_of(to)[from].receive_bytes;
      if (sent != expected)
        throw CommError(CommError::Kind::mismatch, gate_.world_rank(from == rank() ? to : from),
                        fmt::format("rank {} sends {} bytes to rank {}, which expects {}", gate_.world_rank(from), sent,
                                    gate_.world_rank(to), expected));
      if (from != to) longest = std::max<size_t>(longest, sent);
    }
  }
  return longest;
}

}  // namespace esp::comm
