// Number of bytes of `in` and `out` that a call touches on a rank, and the location of its chunks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/comm/call.h"

namespace esp::comm {

struct BufferBytes {
  size_t in_bytes = 0, out_bytes = 0;
};
BufferBytes buffer_bytes_of(const Call& call, int rank, int size);

// Bytes that a rank exchanges with its peers, each byte counted once. Equals the traffic of the direct algorithms,
// whether or not memory is shared.
struct PeerTraffic {
  uint64_t sent = 0, received = 0;  // in bytes
};
PeerTraffic peer_traffic_of(const Call& call, int rank, int size);

// Bytes [begin, end) of a buffer.
struct ByteRange {
  size_t begin = 0, end = 0;
  size_t bytes() const { return end - begin; }
};
ByteRange chunk_range(const Call& call, int size, int k);

// True if `in` and `out` overlap without matching element by element. Peers must then not read `in` while `out` is
// written, so the call must be staged.
bool needs_staging(const Call& call, int rank, int size);

inline const std::byte* bytes_in(const Call& call) {
  return static_cast<const std::byte*>(call.in);
}
inline std::byte* bytes_out(const Call& call) {
  return static_cast<std::byte*>(call.out);
}

}  // namespace esp::comm
