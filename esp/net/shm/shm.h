// The transport between processes of one host: the sender copies into a ring in shared memory, the receiver applies
// straight from it. A send is done when all of it is in the ring.
//
// One segment per group holds a doorbell per member and, per ordered pair, a lane: kCells cells of 256 bytes, each with
// a slot of bulk data. A message takes one cell per piece. Messages of at most kInlineBytes lie in the cell itself, the
// first bytes in the cache line that also holds tag, length and turn; larger ones go through the slots, piece by piece.
// A cell's turn counts its uses: even, the sender's to fill; odd, the receiver's to empty. Slots shrink as groups grow,
// so that even if every pair of a large group talks the whole stays within kBulkBytes.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool shm_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_shm(const World& world, const Group& group);

}  // namespace esp::net
