// The device mesh: coordinates of each rank along the parallelism axes.
//
// world = tp·cp·dp·pp, rank = i_tp + tp·(i_cp + cp·(i_dp + dp·i_pp)). The tensor axis communicates most and lies within
// a node; the pipeline axis communicates least and crosses nodes. ep divides dp·cp. A group of an axis contains the
// ranks whose other coordinates are equal. MeshShape is data; `Mesh` creates the communicators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/comm/communicator.h"

namespace esp::parallel {

struct Coordinates {
  int tp = 0, cp = 0, dp = 0, pp = 0;
  bool operator==(const Coordinates&) const = default;
};

struct MeshShape {
  int tp = 1, cp = 1, dp = 1, pp = 1, ep = 1;

  int size() const { return tp * cp * dp * pp; }
  int replicas() const { return dp * cp; }  // number of ranks over which gradients are summed
  Coordinates at(int rank) const;
  int rank_of(const Coordinates& c) const { return c.tp + tp * (c.cp + cp * (c.dp + dp * c.pp)); }
  int replica_of(const Coordinates& c) const { return c.cp + cp * c.dp; }  // index among the replicas
  std::string text() const;                                                // e.g. "tp 2 × cp 1 × dp 2 × pp 1"
  bool operator==(const MeshShape&) const = default;
};

// The process groups that the mesh defines.
enum class MeshAxis : uint8_t { tensor, context, data, replicas, pipe, model, expert, expert_data };
inline constexpr MeshAxis kMeshAxes[] = {MeshAxis::tensor, MeshAxis::context, MeshAxis::data,   MeshAxis::replicas,
                                         MeshAxis::pipe,   MeshAxis::model,   MeshAxis::expert, MeshAxis::expert_data};
std::string_view name_of(MeshAxis axis);

// The ranks of the group of `axis` that contains `rank`, in axis order. The first rank identifies the group.
std::vector<int> members(const MeshShape& shape, MeshAxis axis, int rank);

// The communicators of one rank. Null for a group of one; the world's communicator if the group is the whole world.
// Construction is collective over the world.
class Mesh {
 public:
  Mesh(const MeshShape& shape, comm::Communicator* world);

  const MeshShape& shape() const { return shape_; }
  const Coordinates& coordinates() const { return coordinates_; }
  int rank() const { return world_ ? world_->rank() : 0; }
  comm::Communicator* world() const { return world_; }
  comm::Communicator* group(MeshAxis axis) const { return groups_[static_cast<size_t>(axis)]; }
  // Index of this rank in a group, and size of the group; also valid for a group of one.
  int index(MeshAxis axis) const;
  int size(MeshAxis axis) const;
  // Creates a second communicator over the same ranks; null for a group of one. Collective over the world.
  std::unique_ptr<comm::Communicator> make_communicator(MeshAxis axis) const;

 private:
  const MeshShape shape_;
  comm::Communicator* const world_;
  const Coordinates coordinates_;
  std::unique_ptr<comm::Communicator> owned_[std::size(kMeshAxes)];
  comm::Communicator* groups_[std::size(kMeshAxes)] = {};
};

}  // namespace esp::parallel
