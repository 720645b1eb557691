// RankProcesses: the interface through which InPlaceRestart controls the processes of one host. Implemented by
// LocalJob, and by simulated processes in the fault simulation. `rank` counts from 0 on this host.
#pragma once

#include <string>

#include "esp/launch/environment.h"

namespace esp::launch {

class RankProcesses {
 public:
  virtual ~RankProcesses() = default;
  virtual bool any_finished() const = 0;                     // true if any rank has ended with exit code 0
  virtual void send(int rank, const std::string& text) = 0;  // no effect if the rank has ended
  virtual void kill(int rank) = 0;
  // Starts a replacement for a rank that has ended. `changed` replaces environment variables. Returns false if all
  // ranks have ended meanwhile.
  virtual bool respawn(int rank, const Environment& changed) = 0;
  virtual void clear_failures() = 0;  // called after a recovery: drops the failures recorded so far
};

}  // namespace esp::launch
