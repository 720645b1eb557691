// Ranks that step at their own pace, and ranks that only serve: what the trainer must know of a strategy in which not
// every rank computes every step together with the others (parameter servers). One thread.
#pragma once

#include <cstdint>

namespace esp::sync {

class Clocks {
 public:
  virtual ~Clocks() = default;
  virtual bool lockstep() const = 0;        // a step is all workers' together: losses and norms are of all
  virtual bool serves_only() const = 0;     // this rank computes nothing; a step of it is over when all workers' is
  virtual void begin_at(int64_t step) = 0;  // values and state were loaded, and the next step is this one
  // Collective, everywhere after the same step: every push is applied, and every worker has the newest values.
  virtual void meet() = 0;
  // Where there is no lockstep: this rank would stop; whether all do before this step.
  virtual void wish_stop() = 0;
  virtual bool stops_before(int64_t step) = 0;
};

}  // namespace esp::sync
