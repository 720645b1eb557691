// The communicators between neighbouring stages: two for every edge, of two ranks each, one for activations and one for
// gradients, so that no worker ever has a send queued behind a receive.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/parallel/pp/runner.h"

namespace esp::parallel {

class PipeEdges {
 public:
  // Collective over the stages' communicator, which is ordered by stage; null: one stage. With `ring` the last stage
  // has an edge to the first, as several chunks want it.
  PipeEdges(comm::Communicator* stages, bool ring);

  StageEdges here() const;

 private:
  std::unique_ptr<comm::Communicator> activations_in_, gradients_out_, activations_out_, gradients_in_;
};

}  // namespace esp::parallel
