// StopSignals: SIGTERM, SIGINT, SIGHUP (closed terminal), SIGUSR1 and SIGUSR2 request a checkpoint and a stop after the
// current step. Further signals change nothing, with one exception: a SIGINT 5 s or more after the first signal ends
// the process at once. If SIGHUP was ignored at the start (nohup), it stays ignored.
#pragma once

#include <csignal>
#include <cstdint>

#include <array>

namespace esp::train {

// Only one object per process. If no signal came, the destructor restores the previous handlers.
class StopSignals {
 public:
  static constexpr int64_t kForceQuitAfter_ns = 5'000'000'000;

  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // the last signal received; 0: none

 private:
  static constexpr std::array<int, 5> kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  std::array<struct sigaction, kSignals.size()> former_{};
};

}  // namespace esp::train
