#include "esp/train/signals.h"

#include <atomic>

namespace esp::train {
namespace {

std::atomic<int> asked{0};  // a handler can reach nothing else
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  asked.store(signal, std::memory_order_relaxed);
}

}  // namespace

StopSignals::StopSignals() {
  asked = 0;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = note;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    if (kSignals[i] == SIGINT) action.sa_flags |= SA_RESETHAND;  // the second is the default: the end
    sigaction(kSignals[i], &action, &former_[i]);
    if (kSignals[i] == SIGHUP && former_[i].sa_handler == SIG_IGN) sigaction(SIGHUP, &former_[i], nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former_[i], nullptr);
}

int StopSignals::received() const {
  return asked.load(std::memory_order_relaxed);
}

}  // namespace esp::train
