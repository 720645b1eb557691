// BPF filter for handshakes, active while unrelated clients flood a port. If the first TCP segment of a connection does
// not begin like a handshake request of this job, Linux drops it. This process then has nothing to accept, read or
// close. On loopback, the filter runs in the CPU time of the sender. The sender retransmits a dropped segment, so a
// legitimate connection succeeds after the filter is detached.
#pragma once

#include <string_view>

namespace esp::net {

// `request` is the first message of a caller of this job (net/handshake.h). The filter compares its magic, job and
// length. An accepted socket inherits the filter: call detach_handshake_filter on it. Returns false if Linux does not
// support the filter.
bool attach_handshake_filter(int listening, std::string_view request);
void detach_handshake_filter(int fd);

}  // namespace esp::net
