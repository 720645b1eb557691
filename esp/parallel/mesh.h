// Where each rank stands among those that share a model and those that copy it.
//
// world = tp·cp·dp·pp, rank = i_tp + tp·(i_cp + cp·(i_dp + dp·i_pp)): the tensor axis, which talks most, is within a
// node, the pipeline, which talks least, across them. ep divides dp·cp. A group of an axis holds the ranks that are
// equal in all other coordinates. The shape is data; `Mesh` makes the communicators.
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
  int copies() const { return dp * cp; }  // ranks over which gradients are summed
  Coordinates at(int rank) const;
  int rank_of(const Coordinates& c) const { return c.tp + tp * (c.cp + cp * (c.dp + dp * c.pp)); }
  int copy_of(const Coordinates& c) const { return c.cp + cp * c.dp; }  // place among the copies
  std::string text() const;                                             // "tp 2 × cp 1 × dp 2 × pp 1"
  bool operator==(const MeshShape&) const = default;
};

// The groups that ranks form, by what they are for.
enum class Axis : uint8_t { tensor, context, data, copies, pipe, model, expert, expert_data };
inline constexpr Axis kAxes[] = {Axis::tensor, Axis::context, Axis::data,   Axis::copies,
                                 Axis::pipe,   Axis::model,   Axis::expert, Axis::expert_data};
std::string_view name_of(Axis axis);

// The group of `axis` that `rank` is in, in the order of the axis; the first of them tells groups apart.
std::vector<int> members(const MeshShape& shape, Axis axis, int rank);

// The communicators of one rank: null where the group has one member; the world's own where all ranks are copies.
// Making one is collective over the world.
class Mesh {
 public:
  Mesh(const MeshShape& shape, comm::Communicator* world);

  const MeshShape& shape() const { return shape_; }
  const Coordinates& here() const { return here_; }
  int rank() const { return world_ ? world_->rank() : 0; }
  comm::Communicator* world() const { return world_; }
  comm::Communicator* group(Axis axis) const { return groups_[static_cast<size_t>(axis)]; }
  // Its place and their number in a group, also where it is alone.
  int index(Axis axis) const;
  int size(Axis axis) const;
  // For whoever wants a line of his own among the same ranks; null where there is one. Collective over the world.
  std::unique_ptr<comm::Communicator> another(Axis axis) const;

 private:
  const MeshShape shape_;
  comm::Communicator* const world_;
  const Coordinates here_;
  std::unique_ptr<comm::Communicator> made_[std::size(kAxes)];
  comm::Communicator* groups_[std::size(kAxes)] = {};
};

}  // namespace esp::parallel
