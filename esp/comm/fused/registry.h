// Registered memory: buffers that every member of the group maps, so peers access them without a copy.
//
// One segment per allocation holds an equal part per member. A buffer is recognised by its address in this rank's part;
// peers receive (segment, offset) and look up their own mapping. `add` is collective and numbers segments identically
// on all members. Dropping the memory unmaps it on this rank only, also after the registry is destroyed. Thread-safe.
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

  // The address of [data, data + bytes). Private unless wholly inside this rank's part of one segment.
  BufferAddress find(const void* data, size_t bytes) const;
  // The same address in `member`'s part, mapped here. Null when this rank no longer maps the segment.
  std::byte* resolve(const BufferAddress& place, int member) const;

 private:
  struct MappedSegment {
    std::byte* base;  // member 0's part
    size_t stride;
    int rank;
  };
  mutable std::mutex mutex_;  // guards all below
  std::map<uint64_t, MappedSegment> regions_;
  uint64_t next_ = 1;
};

}  // namespace esp::comm
