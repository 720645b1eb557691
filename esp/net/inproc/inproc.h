// inproc: the transport between threads of one process. The receiver reads a message directly from the sender's buffer;
// the only copy is the operation itself. A send is done when the receiver has consumed it.
//
// Each ordered pair has a ring of announcements. The sender writes one and marks it `posted`. The receiver claims it
// (`taking`), consumes the bytes and marks it `taken`. The sender then finishes its Transfer. To cancel, the sender
// turns `posted` into `withdrawn`, or waits until a `taking` ends; afterwards its buffer is no longer in use.
#pragma once

#include <memory>

#include "esp/net/transport.h"

namespace esp::net {

bool inproc_reaches(const World& world, int a, int b);
std::unique_ptr<Transport> open_inproc(const World& world, const Group& group);

}  // namespace esp::net
