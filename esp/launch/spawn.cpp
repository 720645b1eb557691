#include "esp/launch/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "esp/base/error.h"

namespace esp::launch {
namespace {

struct ChildSetup {
  std::vector<char*> argv, envp;
  int out = -1, err = -1, null = -1, secret = -1, control = -1;
  pid_t parent = 0, group = 0;
  int death_signal = 0;
};

// Runs in the child after fork and then executes the program. Makes only async-signal-safe system calls.
[[noreturn]] void exec_child(const ChildSetup& prepared) {
  ::prctl(PR_SET_PDEATHSIG, prepared.death_signal);
  if (::getppid() != prepared.parent) ::_exit(1);  // the parent died before prctl could set the parent-death signal
  ::setpgid(0, prepared.group);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int ignored : {SIGPIPE, SIGXFSZ}) ::signal(ignored, SIG_DFL);
  ::dup2(prepared.null, 0);
  ::dup2(prepared.out, 1);
  ::dup2(prepared.err, 2);
  // Descriptors are first duplicated to high numbers, because one of them may already have the number kSecretFd or
  // kControlFd that another one must get.
  constexpr int kMinTemporaryFd = 10;
  const int secret = prepared.secret < 0 ? -1 : ::fcntl(prepared.secret, F_DUPFD_CLOEXEC, kMinTemporaryFd);
  const int control = prepared.control < 0 ? -1 : ::fcntl(prepared.control, F_DUPFD_CLOEXEC, kMinTemporaryFd);
  if (secret >= 0) ::dup2(secret, kSecretFd);
  if (control >= 0) ::dup2(control, kControlFd);
  ::execvpe(prepared.argv[0], prepared.argv.data(), prepared.envp.data());
  const char* why = ::strerrordesc_np(errno);
  for (const char* part : {"cannot run ", static_cast<const char*>(prepared.argv[0]), ": ", why, "\n"})
    if (::write(2, part, std::strlen(part)) < 0) break;
  ::_exit(127);
}

void make_pipe(net::Socket& read_end, net::Socket& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw IoError("cannot create a pipe for the output of a process: " + errno_text(errno));
  read_end = net::Socket(ends[0]);
  write_end = net::Socket(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
}

}  // namespace

Child spawn(const SpawnOptions& options) {
  Child child;
  net::Socket out_write, err_write;
  net::Socket null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) throw IoError("cannot open /dev/null: " + errno_text(errno));
  if (options.capture_stdout) make_pipe(child.out, out_write);
  if (options.capture_stderr) make_pipe(child.err, err_write);

  std::vector<std::string> arguments = options.command, variables;
  for (const auto& [name, value] : options.environment) variables.push_back(name + "=" + value);
  ChildSetup prepared;
  for (std::string& text : arguments) prepared.argv.push_back(text.data());
  for (std::string& text : variables) prepared.envp.push_back(text.data());
  prepared.argv.push_back(nullptr);
  prepared.envp.push_back(nullptr);
  prepared.null = null.fd();
  prepared.out = out_write ? out_write.fd() : null.fd();
  prepared.err = err_write ? err_write.fd() : null.fd();
  prepared.secret = options.secret_fd;
  prepared.control = options.control_fd;
  prepared.parent = ::getpid();
  prepared.group = options.group;
  prepared.death_signal = options.death_signal;

  child.pid = ::fork();
  if (child.pid < 0) throw IoError("cannot start a process: " + errno_text(errno));
  if (child.pid == 0) exec_child(prepared);
  // The child does this too. The parent also does it, because the group must exist when spawn returns.
  ::setpgid(child.pid, options.group);
  child.pidfd = net::Socket(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  return child;
}

bool wait_for_end(const Child& child, Deadline deadline) {
  constexpr int kAsk_ms = 5;
  pollfd ended{child.pidfd.fd(), POLLIN, 0};  // without a pidfd (fd -1), poll only waits for its timeout
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
      return true;
    if (deadline.passed()) return false;
    ::poll(&ended, 1, child.pidfd ? deadline.left_ms() : std::min(kAsk_ms, deadline.left_ms()));
  }
}

}  // namespace esp::launch
