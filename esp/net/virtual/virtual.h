// virtual: the transport with a virtual clock, for ranks of one process. It moves real data; times come from a
// VirtualNetwork.
//
// Each port serves its messages in issue order: a message moves when it is the oldest unserved send of its sender and
// the oldest unserved receive of its receiver. Times therefore depend only on what each rank issued and in which order,
// not on thread scheduling. For this, a rank must finish with one group before it uses another. Some programs have
// issue orders that cannot be served this way, because a send would have to be buffered while a later one is served.
// Such a program deadlocks here until its deadline reports an error.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool virtual_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_virtual(const World& world, const Group& group);

}  // namespace esp::net
