// Tile plan: the elements that an optimizer owns, concatenated and split into tiles. A tile is the unit of update, copy
// and streaming.
//
// Elements are numbered over all owned ranges, in the order of the ranges. A tile may begin and end inside a range and
// may span many ranges, so small ranges do not cause small transfers. With `split_at_ranges` a tile never spans two
// ranges. A pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "esp/nn/parameter.h"
#include "esp/optim/optimizer.h"

namespace esp::sync {

struct TilePlan {
  // Consecutive elements that either all have weight decay or all have none. updated = false: elements between
  // parameters, which are never updated.
  struct UpdateRange {
    int64_t begin = 0, end = 0;
    bool updated = true, decay = false;
  };
  // The part of a tile that lies in one owned range.
  struct Segment {
    int64_t begin = 0, end = 0;
    size_t range = 0;
    int64_t first = 0;  // index in the range of the segment's first element
  };
  struct Tile {
    int64_t begin = 0, end = 0;
    std::vector<UpdateRange> update_ranges;
    std::vector<Segment> segments;
    int64_t count() const { return end - begin; }
  };

  int64_t count = 0;            // total number of elements
  std::vector<int64_t> begins;  // [range]: the number of its first element
  std::vector<Tile> tiles;
  int64_t largest = 0;  // number of elements of the largest tile
};

TilePlan plan_tiles(const nn::ParameterList& parameters, std::span<const optim::OptimizerShard> owned, int64_t tile,
                    bool split_at_ranges = false);

}  // namespace esp::sync
