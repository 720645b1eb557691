// AsyncWorkers: the interface of parameter-server strategies. Workers may step at their own pace, and some ranks may
// only serve parameters without computing. Called from one thread.
#pragma once

#include <cstdint>

namespace esp::sync {

class AsyncWorkers {
 public:
  virtual ~AsyncWorkers() = default;
  // true: all workers take each step together, so losses and norms cover all workers
  virtual bool lockstep() const = 0;
  // true on a rank that only serves parameters; each of its steps lasts as long as the step of the workers
  virtual bool is_server_only() const = 0;
  // called after weights and optimizer state were loaded; `step` is the next step
  virtual void begin_at(int64_t step) = 0;
  // Collective; every rank calls it after the same step. Applies all pushed gradients; every worker then has the newest
  // weights.
  virtual void synchronise() = 0;
  // Used without lockstep. request_stop asks all ranks to stop. stops_before reports whether all ranks stop before
  // `step`.
  virtual void request_stop() = 0;
  virtual bool stops_before(int64_t step) = 0;
};

}  // namespace esp::sync
