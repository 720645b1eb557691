// Forked: a child process for tests, with a line of text each way. Killed and reaped when it goes out of scope. Fork
// before any thread is started: the child gets only the one that forks.
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

class Forked {
 public:
  // `body` runs in the child with the child's end; what it throws is its last line.
  explicit Forked(const std::function<void(Forked& parent)>& body) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    pid_ = fork();
    bool child = pid_ == 0;
    ::close(ends[child ? 0 : 1]);
    line_ = Socket(ends[child ? 1 : 0]);
    if (!child) return;
    int code = 0;
    try {
      body(*this);
    } catch (const std::exception& error) {
      say(std::string("threw ") + error.what());
      code = 1;
    }
    _exit(code);
  }
  Forked(Forked&& other) noexcept : pid_(std::exchange(other.pid_, -1)), line_(std::move(other.line_)) {}
  ~Forked() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  int pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }

  void say(std::string text) const {
    text += '\n';
    if (send(line_.fd(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return;  // the other side sees us end
  }
  // The next line; "(nothing)" at the deadline, "(end)" when the other side has closed.
  std::string hear(Deadline deadline = Deadline::after_ms(30'000)) {
    for (;;) {
      if (auto end = heard_.find('\n'); end != std::string::npos) {
        std::string text = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return text;
      }
      pollfd item{line_.fd(), POLLIN, 0};
      if (poll(&item, 1, deadline.left_ms()) == 0) return "(nothing)";
      char buffer[4096];
      ssize_t got = recv(line_.fd(), buffer, sizeof buffer, 0);
      if (got <= 0) return "(end)";
      heard_.append(buffer, static_cast<size_t>(got));
    }
  }
  // The exit code; 128 and the signal's number when it was killed.
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int pid_ = -1;
  Socket line_;
  std::string heard_;
};

}  // namespace esp::net
