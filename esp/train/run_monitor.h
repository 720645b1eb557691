// RunMonitor: the health checks of a training run. It reports this rank's phase to the stall detector, compares
// replicas, checks GEMMs, detects stragglers, and injects faults for tests. It writes its findings to stderr and, as
// one line each, to events.jsonl in the run folder. One thread.
#pragma once

#include <memory>
#include <string>

#include "esp/base/log.h"
#include "esp/comm/stall_detector.h"
#include "esp/kernel/gemm_check.h"
#include "esp/train/engine.h"
#include "esp/train/replica_check.h"
#include "esp/train/straggler_detector.h"

namespace esp::train {

class RunMonitor {
 public:
  RunMonitor(Engine& engine, const RunConfig& config, const Log& log, const std::string& folder);
  ~RunMonitor();

  // Between begin_step and end_step, the GEMMs of this thread are counted or checked.
  void begin_step();
  // Collective. CommError(corrupt) if replicas differ or a GEMM gave a wrong result.
  void end_step(const StepResult& result, double seconds);
  void begin(comm::Phase phase);
  // Collective. Compares the replicas before the caller saves their state.
  void before_checkpoint();

 private:
  bool is_injected(InjectedFault::Kind kind, int64_t step) const;
  void compare();
  void report_product();
  [[noreturn]] void fail_corrupt(const CommError& cause, const char* event);

  Engine& engine_;
  const RunConfig& config_;
  const Log log_;
  const std::string folder_;
  const JobContext job_;
  ReplicaCheck replicas_;
  kernel::GemmCheck products_;
  // set only during a step in which GEMMs are counted or checked
  std::unique_ptr<kernel::GemmCheck::Scope> scope_;
  StragglerDetector straggler_{job_.local_size > available_cores() ? StragglerDetector::kOversubscribed_ms : 0};
  bool counted_ = false;
  int64_t num_checked_ = 0, compared_at_ = -1;
};

// Callbacks that log the findings of this rank's stall detector. `folder` need not exist yet.
comm::StallDetector::Callbacks stall_callbacks(const Log& log, const std::string& folder, obs::FlightRecorder* flight);

// Makes labels like «gradients of blocks.0 to head» from a call's group and element count.
comm::CallLabeler make_call_labeler(Engine& engine, const RunConfig& config);

}  // namespace esp::train
