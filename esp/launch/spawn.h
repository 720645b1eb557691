// One child process with everything prepared before fork, so that the child calls only what is safe while other threads
// of the parent hold locks.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "esp/base/clock.h"
#include "esp/launch/environment.h"
#include "esp/net/socket.h"

namespace esp::launch {

struct SpawnOptions {
  std::vector<std::string> command;                   // [0] is a path, or looked up in PATH
  Environment environment;                            // all of it
  pid_t group = 0;                                    // process group to join; 0: a new one led by the child
  int secret_fd = -1;                                 // becomes descriptor 3
  int control_fd = -1;                                // becomes descriptor 4
  bool capture_stdout = true, capture_stderr = true;  // otherwise /dev/null
  int death_signal = 9;                               // sent to the child when the calling thread dies
};

struct Child {
  pid_t pid = -1;
  net::Socket pidfd;     // none where the kernel refuses it (an old one, a seccomp filter): the end is then asked for
  net::Socket out, err;  // read ends
};

inline constexpr int kSecretFd = 3, kControlFd = 4;

// Throws IoError; a program that cannot be run shows as a child that exits with 127 and says why on stderr.
Child spawn(const SpawnOptions& options);

// Waits for the child's end, and leaves its status to waitpid. False: the deadline came first.
bool wait_for_end(const Child& child, Deadline deadline);

}  // namespace esp::launch
