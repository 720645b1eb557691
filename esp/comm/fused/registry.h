// Registered memory: buffers that every member of the group maps, so that peers read and write them without a copy.
//
// One segment per allocation holds one equal part per member. A buffer is recognised by its address in this rank's
// part; peers are told (segment, offset) and find their own mapping. `add` is collective and hands out numbers in the
// same order everywhere; dropping the memory unmaps it here only, also after the registry is gone. Any thread may call.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "esp/comm/fused/board.h"
#include "esp/net/shm/segment.h"

namespace esp::comm {

class Registry : public std::enable_shared_from_this<Registry> {
 public:
  std::shared_ptr<void> add(const net::World& world, const net::Group& group, size_t bytes, Deadline deadline);

  // Where [data, data + bytes) lies. Private unless wholly inside this rank's part of one segment.
  Place find(const void* data, size_t bytes) const;
  // Where member `member` has that place, mapped here. Null when this rank no longer maps the segment.
  std::byte* resolve(const Place& place, int member) const;

 private:
  struct Region {
    std::byte* base;  // member 0's part
    size_t stride;
    int rank;
  };
  mutable std::mutex mutex_;  // guards all below
  std::map<uint64_t, Region> regions_;
  uint64_t next_ = 1;
};

}  // namespace esp::comm
