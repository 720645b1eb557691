// How a process comes by the job secret: through an inherited pipe from a launcher on this machine, or from a file that
// only its owner can read. Never through arguments or the environment, which other users and core dumps can see.
#pragma once

#include "esp/launch/environment.h"
#include "esp/net/world.h"

namespace esp::launch {

// Reads ESPALIER_SECRET_FD (a descriptor number; read to its end and closed, so it works once) or ESPALIER_SECRET_FILE
// (a path, see net/secret.h). An empty secret when neither is set. Throws UsageError, IoError.
net::Secret read_secret(const Environment& environment);

// A pipe that holds the secret; the read end is for a child. Both ends close on exec.
int secret_pipe(const net::Secret& secret);

}  // namespace esp::launch
