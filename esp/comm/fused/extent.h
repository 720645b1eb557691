// How many bytes of `in` and `out` a call touches on a rank, and where its chunks lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/comm/call.h"

namespace esp::comm {

struct Extent {
  size_t in_bytes = 0, out_bytes = 0;
};
Extent extent_of(const Call& call, int rank, int size);

// What of a rank's data others must have seen when the call is over, and it of theirs, each byte once: what the direct
// algorithms send, however memory is shared.
struct Crossing {
  uint64_t sent = 0, received = 0;  // bytes
};
Crossing crossing_of(const Call& call, int rank, int size);

// Bytes [begin, end) of a buffer.
struct Span {
  size_t begin = 0, end = 0;
  size_t bytes() const { return end - begin; }
};
Span chunk_span(const Call& call, int size, int k);

// In and out share memory otherwise than element on its own element: peers may not read `in` while `out` is written.
bool needs_staging(const Call& call, int rank, int size);

inline const std::byte* bytes_in(const Call& call) {
  return static_cast<const std::byte*>(call.in);
}
inline std::byte* bytes_out(const Call& call) {
  return static_cast<std::byte*>(call.out);
}

}  // namespace esp::comm
