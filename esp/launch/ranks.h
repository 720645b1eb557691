// Ranks: what re-forming a round asks of whoever holds the processes of one host (LocalJob; in the simulation of
// faults, processes that are only thought of). `rank` counts from 0 on this host.
#pragma once

#include <string>

#include "esp/launch/environment.h"

namespace esp::launch {

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual bool any_done() const = 0;                        // a rank has ended well
  virtual void say(int rank, const std::string& text) = 0;  // nothing happens when it is gone
  virtual void kill(int rank) = 0;
  // One in the place of a rank that has ended, with changes to the environment. False when all had ended meanwhile.
  virtual bool respawn(int rank, const Environment& changed) = 0;
  virtual void forgive() = 0;  // the failures so far are mended: the job has not failed
};

}  // namespace esp::launch
