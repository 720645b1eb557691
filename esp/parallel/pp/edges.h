// Communicators between neighbouring pipeline stages. Each edge has two communicators of two ranks, one for activations
// and one for gradients, so that a send never queues behind a receive.
#pragma once

#include <memory>

#include "esp/comm/communicator.h"
#include "esp/parallel/pp/runner.h"

namespace esp::parallel {

class PipeEdges {
 public:
  // Collective over `stages`, the communicator of all stages in order; null: one stage. `ring`: adds an edge from the
  // last stage to the first, for several chunks per stage.
  PipeEdges(comm::Communicator* stages, bool ring);

  StageEdges stage_edges() const;

 private:
  std::unique_ptr<comm::Communicator> activations_in_, gradients_out_, activations_out_, gradients_in_;
};

}  // namespace esp::parallel
