#include "esp/parallel/mesh.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"

namespace esp::parallel {
namespace {

// Ranks are in one group of `axis` if `group` is equal; `index` orders them within it.
struct GroupPlace {
  int group = 0, order = 0;
};

GroupPlace place_of(const MeshShape& s, MeshAxis axis, const Coordinates& c) {
  const auto without = [&](bool tp, bool cp, bool dp, bool pp) {
    return s.rank_of({tp ? 0 : c.tp, cp ? 0 : c.cp, dp ? 0 : c.dp, pp ? 0 : c.pp});
  };
  const int copy = s.replica_of(c);
  switch (axis) {
    case MeshAxis::tensor:
      return {without(true, false, false, false), c.tp};
    case MeshAxis::context:
      return {without(false, true, false, false), c.cp};
    case MeshAxis::data:
      return {without(false, false, true, false), c.dp};
    case MeshAxis::replicas:
      return {without(false, true, true, false), copy};
    case MeshAxis::pipe:
      return {without(false, false, false, true), c.pp};
    case MeshAxis::model:
      return {without(true, false, false, true), c.tp + s.tp * c.pp};
    case MeshAxis::expert:  // ep consecutive replicas
      return {without(false, true, true, false) * s.replicas() + copy / s.ep, copy % s.ep};
    case MeshAxis::expert_data:
      break;
  }
  return {without(false, true, true, false) * s.replicas() + copy % s.ep, copy / s.ep};
}

}  // namespace

Coordinates MeshShape::at(int rank) const {
  ESP_CHECK(rank >= 0 && rank < size(), "rank {} of {}", rank, text());
  return {rank % tp, rank / tp % cp, rank / (tp * cp) % dp, rank / (tp * cp * dp)};
}

std::string MeshShape::text() const {
  return fmt::format("tp {} × cp {} × dp {} × pp {}", tp, cp, dp, pp) + (ep == 1 ? "" : fmt::format(", ep {}", ep));
}

std::string_view name_of(MeshAxis axis) {
  constexpr std::string_view kNames[] = {"tensor", "context", "data",   "copies",
                                         "pipe",   "model",   "expert", "expert_data"};
  return kNames[static_cast<size_t>(axis)];
}

std::vector<int> members(const MeshShape& shape, MeshAxis axis, int rank) {
  const int group = place_of(shape, axis, shape.at(rank)).group;
  std::vector<std::pair<int, int>> found;
  for (int other = 0; other < shape.size(); ++other)
    if (const GroupPlace place = place_of(shape, axis, shape.at(other)); place.group == group)
      found.emplace_back(place.order, other);
  std::sort(found.begin(), found.end());
  std::vector<int> ranks;
  for (const auto& [order, other] : found) ranks.push_back(other);
  return ranks;
}

Mesh::Mesh(const MeshShape& shape, comm::Communicator* world)
    : shape_(shape), world_(world), here_(shape.at(world ? world->rank() : 0)) {
  ESP_CHECK(shape.size() == (world ? world->size() : 1), "{} for {} ranks", shape.text(), world ? world->size() : 1);
  ESP_CHECK(shape.replicas() % shape.ep == 0, "{}: ep divides dp·cp", shape.text());
  for (MeshAxis axis : kMeshAxes) {
    // Replicas of an unsharded model are the whole world; no second communicator is needed.
    const bool of_copies = axis == MeshAxis::data || axis == MeshAxis::replicas || axis == MeshAxis::expert_data;
    const bool everyone = world && static_cast<int>(members(shape, axis, rank()).size()) == world->size();
    const auto at = static_cast<size_t>(axis);
    if (!of_copies || !everyone) made_[at] = make_communicator(axis);
    groups_[at] = of_copies && everyone && world->size() > 1 ? world : made_[at].get();
  }
}

int Mesh::index(MeshAxis axis) const {
  const comm::Communicator* comm = group(axis);
  return comm ? comm->rank() : 0;
}

int Mesh::size(MeshAxis axis) const {
  const comm::Communicator* comm = group(axis);
  return comm ? comm->size() : 1;
}

std::unique_ptr<comm::Communicator> Mesh::make_communicator(MeshAxis axis) const {
  if (members(shape_, axis, rank()).size() == 1) return nullptr;
  const GroupPlace place = place_of(shape_, axis, here_);
  return world_->split(place.group, place.order);
}

}  // namespace esp::parallel
