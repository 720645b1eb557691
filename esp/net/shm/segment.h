// SharedSegment: a shared-memory segment mapped by all members of a group on one host.
//
// Member 0 creates a file with a random name in the shared-memory file system (mode 0600), publishes the name in the
// store, and unlinks it once all members have mapped it. From then on Linux frees the memory when the last process
// ends, even after SIGKILL. The name contains the creator's pid and start time, and the creator holds a file lock that
// ends with the process. The next run of the same user can therefore remove a segment that was orphaned before the
// unlink. Pages are allocated on first touch: unused parts cost nothing.
#pragma once

#include <cstddef>
#include <string>

#include "esp/base/clock.h"
#include "esp/net/world.h"

namespace esp::net {

class SharedSegment {
 public:
  // Collective over the group: the n-th construction with a label joins the n-th constructions of the other members.
  // `label` separates several segments of one group. Member 0 determines the size; the others may pass 0. The memory is
  // zeroed. While waiting, throws failures recorded in PeerStatus, or CommError(timeout). Throws IoError if the file
  // system has too little space left: touching a page without backing would kill the process.
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

// Free bytes of the shared-memory file system.
size_t available_shared_memory();

// Removes the segments of this user that have no running creator; returns the number of removed segments. Called at
// every rendezvous.
int remove_orphaned_segments();

}  // namespace esp::net
