// Communicators between neighbouring pipeline stages: two per edge, of two ranks each, one for activations and one for
// gradients, so that a send never queues behind a receive.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/parallel/pp/runner.h"

namespace esp::parallel {

class PipeEdges {
 public:
  // Collective over the stages' communicator, which is ordered by stage; null: one stage. `ring`: the last stage has an
  // edge to the first, for several chunks per stage.
  PipeEdges(comm::Communicator* stages, bool ring);

  StageEdges of_this_stage() const;

 private:
  std::unique_ptr<comm::Communicator> activations_in_, gradients_out_, activations_out_, gradients_in_;
};

}  // namespace esp::parallel
