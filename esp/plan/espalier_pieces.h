// Pipeline partition of Espalier's trainer: divides the blocks of a ModelShape into contiguous pieces of about equal
// work.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/plan/shape.h"

namespace esp::plan {

struct EspalierPiece {
  int64_t begin = 0, end = 0;  // blocks [begin, end) of the model
  bool stem = false, head = false;
};
std::vector<EspalierPiece> espalier_pieces(const ModelShape& shape, int num_pieces);

}  // namespace esp::plan
