// Where a job secret comes from. A secret is never printed, never an argument on a command line.
#pragma once

#include <string>

#include "esp/net/world.h"

namespace esp::net {

// The secret kept in a file: any 16 bytes to 4 KiB, white space at the end ignored. The file must be regular, belong to
// this user and be closed to all others (0600 or 0400), and no symbolic link; anything else is an IoError that says so.
Secret load_secret(const std::string& path);

// This user's secret on this machine, for jobs on one host that were given none: made on first use, kept in a 0700
// directory of the user's own under `runtime_dir` (the login session's), or under the shared-memory file system when
// that is empty. Other users cannot read it. A name that another user has taken is passed over for the
// next one; a directory of this user that others can enter is refused.
Secret local_secret(const std::string& runtime_dir = "");

}  // namespace esp::net
