// Which machine this is, as far as sharing memory and watching processes goes.
#pragma once

#include <string>

namespace esp::net {

// Equal in two processes exactly when they run on one boot of one machine, for one user, see the same shared-memory
// file system and the same process numbers, and are in one network namespace. `name` (may be empty) sets apart what
// would be equal; it is also what messages show, else the machine's name.
std::string host_identity(const std::string& name = "");

}  // namespace esp::net
