#include "esp/train/model_norm.h"

#include <algorithm>

#include "esp/base/check.h"

namespace esp::train {

ModelNorm::ModelNorm(const parallel::Mesh& mesh, const model::ModelConfig& config, const nn::ParameterList& held)
    : ranks_(mesh.group(parallel::Axis::model)) {
  const auto whole = model::make_model(config);  // names only: nothing is allocated
  const auto& units = whole->parameters().units();
  for (const auto& unit : held.units()) {
    const auto same = [&](const nn::ParameterList::Unit& other) { return other.name == unit.name; };
    const auto found = std::find_if(units.begin(), units.end(), same);
    ESP_CHECK(found != units.end(), "unit {} is not the model's", unit.name);
    place_.push_back(static_cast<size_t>(found - units.begin()));
  }
  mine_.resize(units.size());
  all_.resize(units.size() * static_cast<size_t>(mesh.size(parallel::Axis::model)));
}

double ModelNorm::sum(const std::vector<double>& of_units) {
  std::fill(mine_.begin(), mine_.end(), 0);
  for (size_t i = 0; i < of_units.size(); ++i) mine_[place_[i]] = of_units[i];
  if (ranks_) {
    ranks_->all_gather(mine_.data(), all_.data(), mine_.size(), DType::f64);
  } else {
    all_ = mine_;
  }
  double sum = 0;
  for (size_t unit = 0; unit < mine_.size(); ++unit)
    for (size_t at = unit; at < all_.size(); at += mine_.size()) sum += all_[at];
  return sum;
}

}  // namespace esp::train
