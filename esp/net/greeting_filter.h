// For as long as strangers flood a port: the kernel drops words that do not begin as those of a caller of this job do,
// in the time of whoever sends them, so that there is nothing to accept, to read and to close for us. What is dropped
// is sent again by its sender's kernel: who was wronged is heard when the port is open to all again.
#pragma once

#include <string_view>

namespace esp::net {

// `hello` is what a caller of this job sends first (net/handshake.h); magic, job and length are compared. Accepted
// sockets inherit the filter and must be relieved of it. False when the kernel does not do it.
bool admit_only_like(int listening, std::string_view hello);
void admit_all(int fd);

}  // namespace esp::net
