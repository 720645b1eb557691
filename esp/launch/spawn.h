// Starts one child process. Everything is prepared before fork. After fork the child makes only async-signal-safe
// calls, because other threads of the parent may have held locks.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"
#include "esp/net/socket.h"

namespace esp::launch {

struct SpawnOptions {
  std::vector<std::string> command;  // program and arguments; the program is a path, or a name that is searched in PATH
  Environment environment;           // all environment variables of the child; nothing is inherited
  pid_t group = 0;                   // process group that the child joins; 0: a new group led by the child
  int secret_fd = -1;                // the child gets it as descriptor kSecretFd; -1: none
  int control_fd = -1;               // the child gets it as descriptor kControlFd; -1: none
  bool capture_stdout = true, capture_stderr = true;  // true: through a pipe; false: to /dev/null
  int death_signal = 9;                               // sent to the child when the calling thread dies
};

struct Child {
  pid_t pid = -1;
  // Empty if Linux rejects pidfd_open (old version, seccomp filter). Then the launcher polls for the end of the child.
  net::Socket pidfd;
  net::Socket out, err;  // read ends of the pipes from the child's stdout and stderr
};

inline constexpr int kSecretFd = 3, kControlFd = 4;

// Starts the child. Throws IoError. If the program cannot be run, the child prints a message to stderr and exits with
// 127.
Child spawn(const SpawnOptions& options);

// Waits until the child has ended, but does not reap it. Returns false if the deadline passes first.
bool wait_for_end(const Child& child, Deadline deadline);

}  // namespace esp::launch
