#include "esp/parallel/mesh.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"

namespace esp::parallel {
namespace {

// Ranks with equal `group` are in one group of an axis; `order` is the position of a rank in its group.
struct GroupPosition {
  int group = 0, order = 0;
};

GroupPosition place_of(const MeshShape& s, MeshAxis axis, const Coordinates& c) {
  const auto without = [&](bool tp, bool cp, bool dp, bool pp) {
    return s.rank_of({tp ? 0 : c.tp, cp ? 0 : c.cp, dp ? 0 : c.dp, pp ? 0 : c.pp});
  };
  const int replica = s.replica_of(c);
  switch (axis) {
    case MeshAxis::tensor:
      return {without(true, false, false, false), c.tp};
    case MeshAxis::context:
      return {without(false, true, false, false), c.cp};
    case MeshAxis::data:
      return {without(false, false, true, false), c.dp};
    case MeshAxis::replicas:
      return {without(false, true, true, false), replica};
    case MeshAxis::pipe:
      return {without(false, false, false, true), c.pp};
    case MeshAxis::model:
      return {without(true, false, false, true), c.tp + s.tp * c.pp};
    case MeshAxis::expert:  // a group is ep consecutive replicas
      return {without(false, true, true, false) * s.replicas() + replica / s.ep, replica % s.ep};
    case MeshAxis::expert_data:
      break;
  }
  return {without(false, true, true, false) * s.replicas() + replica % s.ep, replica / s.ep};
}

}  // namespace

Coordinates MeshShape::at(int rank) const {
  ESP_CHECK(rank >= 0 && rank < size(), "rank: got {}; expected a rank of the mesh {}", rank, text());
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
    if (const GroupPosition place = place_of(shape, axis, shape.at(other)); place.group == group)
      found.emplace_back(place.order, other);
  std::sort(found.begin(), found.end());
  std::vector<int> ranks;
  for (const auto& [order, other] : found) ranks.push_back(other);
  return ranks;
}

Mesh::Mesh(const MeshShape& shape, comm::Communicator* world)
    : shape_(shape), world_(world), coordinates_(shape.at(world ? world->rank() : 0)) {
  ESP_CHECK(shape.size() == (world ? world->size() : 1),
            "mesh: got sizes {} in a world of {} ranks; expected a product equal to the world size", shape.text(),
            world ? world->size() : 1);
  ESP_CHECK(shape.replicas() % shape.ep == 0, "mesh: got sizes {}; expected ep to divide dp·cp = {}", shape.text(),
            shape.replicas());
  for (MeshAxis axis : kMeshAxes) {
    // If the model is not sharded, the groups of replicas are the whole world and use the world's communicator.
    const bool of_replicas = axis == MeshAxis::data || axis == MeshAxis::replicas || axis == MeshAxis::expert_data;
    const bool whole_world = world && static_cast<int>(members(shape, axis, rank()).size()) == world->size();
    const auto at = static_cast<size_t>(axis);
    if (!of_replicas || !whole_world) owned_[at] = make_communicator(axis);
    groups_[at] = of_replicas && whole_world && world->size() > 1 ? world : owned_[at].get();
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
  const GroupPosition place = place_of(shape_, axis, coordinates_);
  return world_->split(place.group, place.order);
}

}  // namespace esp::parallel
