// mixed: one transport that combines several transports. Each pair of members uses the first row of the transport table
// that reaches both, for example shared memory within a host and tcp between hosts.
//
// The members of a row are those that it reaches from this rank; they open it as a sub-group. The caller's transfers
// are forwarded as copies that address the peer by its rank in the sub-group; results are copied back. While several
// rows have posted transfers, sleep waits on one row at a time, in short turns of growing length.
#pragma once

#include <memory>
#include <span>

#include "esp/net/transport.h"

namespace esp::net {

// Collective over the group. Every pair must be reached by some row.
std::unique_ptr<Transport> open_mixed(std::span<const TransportRow> rows, const World& world, const Group& group);

}  // namespace esp::net
