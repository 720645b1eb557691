// Passes the job secret to a process: through a pipe that it inherits from a launcher on this machine, or through a
// file that only its owner can read. Never through arguments or environment variables, which other users and core dumps
// can show.
#pragma once

#include "esp/launch/environment.h"
#include "esp/net/world.h"

namespace esp::launch {

// Reads the secret from the descriptor in ESPALIER_SECRET_FD or from the file in ESPALIER_SECRET_FILE (net/secret.h).
// The descriptor is read to its end and closed, so this works once. Returns an empty secret if neither variable is set.
// Throws UsageError, IoError.
net::Secret read_secret(const Environment& environment);

// Returns the read end of a new pipe that contains the secret, for a child process. The descriptor closes on exec.
int secret_pipe(const net::Secret& secret);

}  // namespace esp::launch
