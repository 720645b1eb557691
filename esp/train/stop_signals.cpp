#include "esp/train/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "esp/base/clock.h"

namespace esp::train {
namespace {

// Global variables, because a signal handler can access no other state.
std::atomic<int> asked{0};
std::atomic<int64_t> first_ns{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

void note(int signal) {
  const int error = errno;
  int64_t first = 0;
  const int64_t now = now_ns();
  if (!first_ns.compare_exchange_strong(first, now) && signal == SIGINT) {
    if (now - first >= StopSignals::kForceQuitAfter_ns) {
      ::signal(SIGINT, SIG_DFL);
      ::raise(SIGINT);  // takes effect when this handler returns
    } else {
      constexpr char kText[] = "stopping with a checkpoint; Ctrl-C once more after 5 s ends the process at once\n";
      if (::write(STDERR_FILENO, kText, sizeof kText - 1) < 0) errno = 0;
    }
  }
  asked.store(signal, std::memory_order_relaxed);
  errno = error;
}

}  // namespace

StopSignals::StopSignals() {
  asked = 0;
  first_ns = 0;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = note;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(kSignals[i], &action, &former_[i]);
    if (kSignals[i] == SIGHUP && former_[i].sa_handler == SIG_IGN) sigaction(SIGHUP, &former_[i], nullptr);
  }
}

StopSignals::~StopSignals() {
  if (received() != 0) return;  // keeps the handlers: more signals may arrive while the process ends with its exit code
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former_[i], nullptr);
}

int StopSignals::received() const {
  return asked.load(std::memory_order_relaxed);
}

}  // namespace esp::train
