// Pipeline partition of this program's runtime: divides a model into pieces of about equal work by the rule of its
// trainer, for a Shape.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/plan/shape.h"

namespace esp::plan {

struct OwnPiece {
  int64_t begin = 0, end = 0;  // blocks
  bool stem = false, head = false;
};
std::vector<OwnPiece> own_pieces(const ModelShape& shape, int num_pieces);

}  // namespace esp::plan
