// A shared-memory segment mapped by every member of a group on one host.
//
// Member 0 creates a file with a random name under the shared-memory file system, mode 0600, publishes the name in the
// store, and unlinks it once every member has mapped it: after that the kernel frees it with the last process, whatever
// kills them. The name carries the creator's pid and start time, and the creator holds a lock on the file that ends
// with it, so a segment orphaned inside that window is swept by the next run of the same user. Pages are touched
// lazily: an untouched part costs nothing.
#pragma once

#include <cstddef>
#include <string>

#include "esp/base/clock.h"
#include "esp/net/world.h"

namespace esp::net {

class SharedSegment {
 public:
  // Collective over the group, whose n-th opening of a label meets the others' n-th. `label` keeps several segments of
  // one group apart. The size is member 0's word; the others may pass 0. Filled with zeros. Throws what Fate says
  // while it waits, CommError(timeout), or IoError when the file system has not that much room left: touching a page
  // it cannot give would kill the process.
  SharedSegment(const World& world, const Group& group, const std::string& label, size_t bytes, Deadline deadline);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// What the shared-memory file system can still give.
size_t shared_memory_left();

// Removes segments of this user whose creator no longer lives; returns how many. Called at every rendezvous.
int sweep_segments();

}  // namespace esp::net
