// Σ g² of a whole model, of whose units several ranks hold parts.
//
// Each rank of the model axis tells what it has of every unit of the model (nothing: zero), and all add them up unit by
// unit in the order of the model, within a unit in the order of the axis. So stages that divide the units among them
// get the bits of one process that has them all. What divided experts have is added to their unit first, in the order
// of the expert axis.
#pragma once

#include <string>
#include <vector>

#include "esp/model/model.h"
#include "esp/parallel/mesh.h"

namespace esp::train {

class ModelNorm {
 public:
  ModelNorm(const parallel::Mesh& mesh, model::Model& held);
  // Of the units of the list held here, in their order, and of those of the experts' list. Collective over the model
  // axis, and where there are experts of their own over the expert axis.
  double sum(const std::vector<double>& of_units, const std::vector<double>* of_experts);

 private:
  comm::Communicator *const ranks_, *const expert_ranks_;
  std::vector<size_t> place_, expert_place_;  // of each unit held here, among all of the model
  std::vector<double> mine_, all_, experts_;
};

}  // namespace esp::train
