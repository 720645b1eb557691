// The transport under a virtual clock: ranks of one process, real data, times from a VirtualNetwork.
//
// Each port serves its messages in the order they were issued: a message moves when it is the oldest not yet served of
// its sender's sends and of its receiver's receives. So a message's times follow from what each rank issued, and in
// which order, never from how the threads were scheduled; a rank that finishes with one group before it uses another
// keeps it so. A program whose ranks issue in orders that cannot be served this way (it needs sends to be buffered
// past each other) stands still here, and its deadline says so.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool virtual_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_virtual(const World& world, const Group& group);

}  // namespace esp::net
