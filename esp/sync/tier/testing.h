// Helpers of file-tier tests: run a function in a child process with a small disk, without io_uring, or with a limited
// file size. The function's result is returned as text. If it throws an Error, the text is "<exit code> <message>".
#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/optim/optimizer.h"

namespace esp::sync {

template <typename F>
std::string outcome_of(F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    return fmt::format("{} {}", static_cast<int>(error.exit_code()), error.what());
  }
}

inline std::vector<char> bytes_of(const tensor::Tensor& x) {
  const auto* data = static_cast<const char*>(x.data());
  return {data, data + x.bytes()};
}
// Copies the bytes of a state, for any placement.
inline std::vector<char> bytes_of(const optim::OptimizerState& state) {
  std::vector<char> bytes(state.values.bytes());
  if (state.read) {
    state.read(0, tensor::Tensor::borrow(bytes.data(), state.values.shape(), state.values.dtype()));
  } else if (!bytes.empty()) {
    std::memcpy(bytes.data(), state.values.data(), bytes.size());
  }
  return bytes;
}
inline void set_bytes(const optim::OptimizerState& state, const char* bytes) {
  if (state.write) {
    std::vector<char> copy(bytes, bytes + state.values.bytes());
    state.write(tensor::Tensor::borrow(copy.data(), state.values.shape(), state.values.dtype()));
  } else {
    std::memcpy(state.values.data(), bytes, state.values.bytes());
  }
}

inline std::string in_child(const std::function<std::string()>& f) {
  int ends[2];
  ESP_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  const pid_t child = fork();
  ESP_CHECK(child >= 0);
  if (child == 0) {
    alarm(60);  // kills the child after 60 s if it hangs
    const std::string text = outcome_of(f);
    const bool result = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(result ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : fmt::format("child ended with {}", status);
}

// Call in the child: mounts a separate file system over `folder`. Returns false if this machine does not permit mounts.
inline bool mount_privately(const char* type, const std::string& folder, const std::string& options) {
  if (unshare(CLONE_NEWNS) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return mount("none", folder.c_str(), type, 0, options.c_str()) == 0;
}

// Call in the child: makes the Linux kernel reject io_uring, as in many containers.
inline bool forbid_io_uring() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace esp::sync
