// Before a rank enters an all_to_all_v call, it publishes how many bytes it sends to each peer and expects from it.
// Every rank compares all pairs of ranks, so all ranks report the same mismatching pair.
#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/comm/fused/fused_collectives.h"

namespace esp::comm {

void FusedCollectives::publish_segments(const Call& call) {
  size_t element = size_of(call.dtype);
  AllToAllSegment* segments = segments_of(rank());
  for (size_t k = 0; k < sources_.size(); ++k)
    segments[k] = {call.send_counts[k] * element, call.send_offsets[k] * element, call.recv_counts[k] * element};
}

// Compares all pairs; returns the size of the longest segment between two different ranks, in bytes.
size_t FusedCollectives::check_segments() const {
  size_t longest = 0;
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      uint64_t sent = segments_of(from)[to].send_bytes, expected = segments_of(to)[from].receive_bytes;
      if (sent != expected)
        throw CommError(CommError::Kind::mismatch, barrier_.world_rank(from == rank() ? to : from),
                        fmt::format("rank {} sends {} bytes to rank {}, which expects {} bytes",
                                    barrier_.world_rank(from), sent, barrier_.world_rank(to), expected));
      if (from != to) longest = std::max<size_t>(longest, sent);
    }
  }
  return longest;
}

}  // namespace esp::comm
