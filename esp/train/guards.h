// What watches a run from inside: tells the stall watch which phase this rank is in, compares copies, has products
// checked, names stragglers, and makes the faults tests ask for. What is found goes to stderr and, as one line each, to
// events.jsonl in the run folder. One thread.
#pragma once

#include <memory>
#include <string>

#include "esp/base/log.h"
#include "esp/comm/stall_detector.h"
#include "esp/kernel/gemm_check.h"
#include "esp/train/engine.h"
#include "esp/train/replica_check.h"
#include "esp/train/straggler.h"

namespace esp::train {

class Guards {
 public:
  Guards(Engine& engine, const RunConfig& config, const Log& log, const std::string& folder);
  ~Guards();

  // Products of this thread pass by between the two.
  void begin_step();
  // Collective. CommError(corrupt) when a copy differs or a product was wrong.
  void end_step(const StepResult& result, double seconds);
  void begin(comm::Phase phase);
  // Collective: what is about to be kept is compared first.
  void before_checkpoint();

 private:
  bool is_injected(InjectedFault::Kind kind, int64_t step) const;
  void compare();
  void report_product();
  [[noreturn]] void condemn(const CommError& cause, const char* event);

  Engine& engine_;
  const RunConfig& config_;
  const Log log_;
  const std::string folder_;
  const Standing standing_;
  ReplicaCheck replicas_;
  kernel::GemmCheck products_;
  std::unique_ptr<kernel::GemmCheck::Scope> scope_;  // while a step runs whose products are checked
  Straggler straggler_{standing_.local_size > available_cores() ? Straggler::kCrowded_ms : 0};
  bool counted_ = false;
  int64_t num_checked_ = 0, compared_at_ = -1;
};

// What the stall watch of this rank does with what it finds. `folder` need not be there yet.
comm::StallDetector::Callbacks stall_listener(const Log& log, const std::string& folder, obs::FlightRecorder* flight);

// «gradients of blocks.0 to head», by a call's group and count.
comm::CallLabeler purposes_of(Engine& engine, const RunConfig& config);

}  // namespace esp::train
