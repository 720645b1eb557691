// The transport between threads of one process. The receiver takes a message straight from the sender's buffer: nothing
// is copied but by the operation itself. A send is done when the receiver has taken it.
//
// Per ordered pair there is a ring of announcements. The sender writes one and marks it `posted`; the receiver claims
// it (`taking`), takes the bytes, marks it `taken`; the sender then finishes its Transfer. A sender that gives up turns
// `posted` into `withdrawn`, or waits out a `taking`, so that its buffer is its own again.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool inproc_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_inproc(const World& world, const Group& group);

}  // namespace esp::net
