// shm: the transport between processes of one host. The sender copies into a ring in shared memory; the receiver
// applies directly from the ring. A send is done when all of it is in the ring.
//
// One segment per group holds a FutexEvent per member and a lane (ring) per ordered pair: kCells cells of 256 bytes,
// each with a slot for bulk data. A message uses one cell per chunk. Messages of at most kInlineBytes are stored in the
// cell itself, the first bytes in the cache line that also holds tag, length and turn. Larger ones go through the
// slots, chunk by chunk. A cell's turn counts its uses: even means that the sender may fill it, odd that the receiver
// may empty it. Slots are smaller in larger groups, so that the whole stays within kBulkBytes even if every pair of a
// large group communicates.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool shm_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_shm(const World& world, const Group& group);

}  // namespace esp::net
