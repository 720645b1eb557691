// Sources of the job secret. A secret is never printed and never a command-line argument.
#pragma once

#include <string>

#include "esp/net/world.h"

namespace esp::net {

// Reads the secret from a file: 16 bytes to 4 KiB; trailing white space is ignored. The file must be regular, owned by
// this user, closed to all others (0600 or 0400) and not a symbolic link; otherwise an IoError gives the reason.
Secret load_secret(const std::string& path);

// This user's secret on this machine, for single-host jobs without a configured secret. Created on first use in a 0700
// directory under `runtime_dir` (of the login session), or under the shared-memory file system if `runtime_dir` is
// empty. Other users cannot read it. A directory name occupied by another user is skipped; a directory of this user
// that others can enter is an error.
Secret local_secret(const std::string& runtime_dir = "");

}  // namespace esp::net
