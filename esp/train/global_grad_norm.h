// GlobalGradNorm: computes the squared gradient norm Σ g² of the whole model when its units are sharded over several
// ranks.
//
// Each rank of the model axis contributes its part of every unit (zero for a unit that it does not have). All ranks add
// the parts in the same order: unit by unit, and within a unit in axis order. So pipeline stages get the same bits as
// one process with the whole model. If experts are sharded over the expert axis, the parts of an expert are first added
// to its unit, in the order of that axis.
#pragma once

#include <string>
#include <vector>

#include "esp/model/model.h"
#include "esp/parallel/mesh.h"

namespace esp::train {

class GlobalGradNorm {
 public:
  GlobalGradNorm(const parallel::Mesh& mesh, model::Model& held);
  // `of_units` has Σ g² of each unit in this rank's list, in order. `of_experts` has the same for its list of experts.
  // Collective over the model axis, and over the expert axis if experts are sharded.
  double sum(const std::vector<double>& of_units, const std::vector<double>* of_experts);

 private:
  comm::Communicator *const ranks_, *const expert_ranks_;
  std::vector<size_t> positions_, expert_positions_;  // for each local unit, its index among all units of the model
  std::vector<double> mine_, all_, experts_;
};

}  // namespace esp::train
