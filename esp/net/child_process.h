// ChildProcess: a forked child process for tests, with a text line channel in both directions. The destructor kills and
// reaps it. Fork before starting threads: only the forking thread exists in the child.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <functional>
#include <string>

#include "esp/base/clock.h"
#include "esp/net/socket.h"

namespace esp::net {

class ChildProcess {
 public:
  // `body` runs in the child with the child's end of the channel. An exception in it becomes the last line sent.
  explicit ChildProcess(const std::function<void(ChildProcess& parent)>& body) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    pid_ = fork();
    bool child = pid_ == 0;
    ::close(ends[child ? 0 : 1]);
    socket_ = Socket(ends[child ? 1 : 0]);
    if (!child) return;
    int code = 0;
    try {
      body(*this);
    } catch (const std::exception& error) {
      write_line(std::string("threw ") + error.what());
      code = 1;
    }
    _exit(code);
  }
  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}
  ~ChildProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  int pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }

  void write_line(std::string text) const {
    text += '\n';
    // An error means that the peer closed its end. The next read_line() reports that.
    if (send(socket_.fd(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return;
  }
  // Returns the peer's next line; "(nothing)" if the deadline passes; "(end)" if the peer has closed its end.
  std::string read_line(Deadline deadline = Deadline::after_ms(30'000)) {
    for (;;) {
      if (auto end = received_.find('\n'); end != std::string::npos) {
        std::string text = received_.substr(0, end);
        received_.erase(0, end + 1);
        return text;
      }
      pollfd item{socket_.fd(), POLLIN, 0};
      if (poll(&item, 1, deadline.left_ms()) == 0) return "(nothing)";
      char buffer[4096];
      ssize_t got = recv(socket_.fd(), buffer, sizeof buffer, 0);
      if (got <= 0) return "(end)";
      received_.append(buffer, static_cast<size_t>(got));
    }
  }
  // The exit code, or 128 + signal number if a signal killed the child.
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int pid_ = -1;
  Socket socket_;
  std::string received_;
};

}  // namespace esp::net
