#include "esp/train/global_grad_norm.h"

#include <algorithm>

#include "esp/base/check.h"

namespace esp::train {

namespace {

std::vector<size_t> unit_positions(const nn::ParameterList& held, const std::vector<nn::ParameterList::Unit>& units) {
  std::vector<size_t> places;
  for (const auto& unit : held.units()) {
    const auto same = [&](const nn::ParameterList::Unit& other) { return other.name == unit.name; };
    const auto found = std::find_if(units.begin(), units.end(), same);
    ESP_CHECK(found != units.end(), "unit {} is not a unit of the whole model", unit.name);
    places.push_back(static_cast<size_t>(found - units.begin()));
  }
  return places;
}

}  // namespace

GlobalGradNorm::GlobalGradNorm(const parallel::Mesh& mesh, model::Model& held)
    : ranks_(mesh.group(parallel::MeshAxis::model)), expert_ranks_(mesh.group(parallel::MeshAxis::expert)) {
  const auto whole = model::make_model(held.config());  // only for the names of all units; allocates no memory
  const auto& units = whole->parameters().units();
  positions_ = unit_positions(held.parameters(), units);
  if (held.experts()) {
    expert_positions_ = unit_positions(*held.experts(), units);
    experts_.resize(expert_positions_.size() * static_cast<size_t>(mesh.size(parallel::MeshAxis::expert)));
  }
  mine_.resize(units.size());
  all_.resize(units.size() * static_cast<size_t>(mesh.size(parallel::MeshAxis::model)));
}

double GlobalGradNorm::sum(const std::vector<double>& of_units, const std::vector<double>* of_experts) {
  std::fill(mine_.begin(), mine_.end(), 0);
  for (size_t i = 0; i < of_units.size(); ++i) mine_[positions_[i]] = of_units[i];
  if (of_experts) {
    expert_ranks_->all_gather(of_experts->data(), experts_.data(), of_experts->size(), DType::f64);
    for (size_t at = 0; at < experts_.size(); ++at) mine_[expert_positions_[at % of_experts->size()]] += experts_[at];
  }
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
