// Registered memory: buffers that every member of the group maps, so peers access them without a copy.
//
// Each allocation is one segment with an equal part per member. A buffer is recognised by its address in this rank's
// part. Peers receive (segment, offset) and look up the address in their own mapping. `add` is collective and gives a
// segment the same number on all members. Releasing the memory unmaps it on this rank only; it may be released after
// the registry is destroyed. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "esp/comm/fused/shm_control_block.h"
#include "esp/net/shm/segment.h"

namespace esp::comm {

class Registry : public std::enable_shared_from_this<Registry> {
 public:
  std::shared_ptr<void> add(const net::World& world, const net::Group& group, size_t bytes, Deadline deadline);

  // Returns (segment, offset) of [data, data + bytes). Returns a private address unless the whole range lies inside
  // this rank's part of one segment.
  BufferAddress find(const void* data, size_t bytes) const;
  // Returns where this process maps that address of `member`; null if this rank no longer maps the segment.
  std::byte* resolve(const BufferAddress& address, int member) const;

 private:
  struct MappedSegment {
    std::byte* base;  // address of member 0's part
    size_t stride;
    int rank;
  };
  mutable std::mutex mutex_;  // guards the members below
  std::map<uint64_t, MappedSegment> regions_;
  uint64_t next_ = 1;
};

}  // namespace esp::comm
