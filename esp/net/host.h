// Host identity: decides which processes can share memory and monitor each other.
#pragma once

#include <string>

namespace esp::net {

// The identities of two processes are equal exactly if both run in the same boot of the same machine, for the same
// user, with the same shared-memory file system, pid namespace and network namespace. `name` (may be empty) separates
// hosts that would otherwise be equal. Messages show `name`, or the machine's name if it is empty.
std::string host_identity(const std::string& name = "");

}  // namespace esp::net
