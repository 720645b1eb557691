// SIGTERM, SIGINT, SIGHUP (a closed terminal), SIGUSR1 and SIGUSR2 ask for a checkpoint and a stop at the next step
// boundary. A second SIGINT ends the process at once; a SIGHUP that is ignored (nohup) stays so. One per process; the
// former handlers come back with its end.
#pragma once

#include <csignal>

#include <array>

namespace esp::train {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // the signal asked with, 0 when none came

 private:
  static constexpr std::array<int, 5> kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  std::array<struct sigaction, kSignals.size()> former_{};
};

}  // namespace esp::train
