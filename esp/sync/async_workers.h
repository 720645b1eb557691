// AsyncWorkers: implemented by parameter-server strategies, where workers step at their own pace and some ranks only
// serve parameters. One thread.
#pragma once

#include <cstdint>

namespace esp::sync {

class AsyncWorkers {
 public:
  virtual ~AsyncWorkers() = default;
  virtual bool lockstep() const = 0;  // all workers take each step together; losses and norms cover all of them
  virtual bool is_server_only()
      const = 0;  // this rank computes nothing; its step ends when the step of all workers ends
  virtual void begin_at(int64_t step) = 0;  // weights and optimizer state were loaded; `step` is the next step
  // Collective, after the same step on every rank. Applies every push; every worker then has the newest weights.
  virtual void synchronise() = 0;
  // Without lockstep: requests a stop of all ranks; whether all ranks stop before `step`.
  virtual void request_stop() = 0;
  virtual bool stops_before(int64_t step) = 0;
};

}  // namespace esp::sync
