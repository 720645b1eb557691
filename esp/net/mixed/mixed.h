// Several transports behind one: each pair of members talks over the first row of the table that reaches both, shared
// memory inside a host and tcp across, say.
//
// A row's members are those it reaches from here; they open it as a group of their own. The caller's transfers are
// passed on as copies that name the peer by its rank in that group, and come back when they end. While several rows
// have something posted, sleep waits at one of them at a time, in short turns that grow.
#pragma once

#include <memory>
#include <span>

#include "esp/net/transport.h"

namespace esp::net {

// Collective over the group. Every pair must be reached by some row.
std::unique_ptr<Transport> open_mixed(std::span<const TransportRow> rows, const World& world, const Group& group);

}  // namespace esp::net
