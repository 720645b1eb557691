// Σ g² of a whole model, of whose units several ranks hold parts.
//
// Each rank of the model axis tells what it has of every unit of the model (nothing: zero), and all add them up unit by
// unit in the order of the model, within a unit in the order of the axis. So stages that divide the units among them
// get the bits of one process that has them all.
#pragma once

#include <string>
#include <vector>

#include "esp/model/model.h"
#include "esp/parallel/mesh.h"

namespace esp::train {

class ModelNorm {
 public:
  ModelNorm(const parallel::Mesh& mesh, const model::ModelConfig& config, const nn::ParameterList& held);
  // Of the units of the list held here, in their order. Collective over the model axis.
  double sum(const std::vector<double>& of_units);

 private:
  comm::Communicator* const ranks_;
  std::vector<size_t> place_;  // of each unit held here, among all of the model
  std::vector<double> mine_, all_;
};

}  // namespace esp::train
