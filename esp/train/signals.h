// SIGTERM, SIGINT, SIGHUP (a closed terminal), SIGUSR1 and SIGUSR2 ask for a checkpoint and a stop at the next step
// boundary, however often and in whatever mixture they come. A SIGINT that comes 5 s or more after the first of them
// ends the process at once. A SIGHUP that is ignored (nohup) stays so.
#pragma once

#include <csignal>
#include <cstdint>

#include <array>

namespace esp::train {

// One per process. The former handlers come back with its end where no signal came.
class StopSignals {
 public:
  static constexpr int64_t kPatience_ns = 5'000'000'000;

  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // the last signal, 0 when none came

 private:
  static constexpr std::array<int, 5> kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  std::array<struct sigaction, kSignals.size()> former_{};
};

}  // namespace esp::train
