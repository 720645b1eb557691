// Tile plan: the elements an optimizer owns, concatenated and split into tiles, the unit of update, copy and streaming.
//
// Element numbers count over all owned ranges in their order. A tile may begin and end inside a range and span many:
// small ranges do not cause small transfers. With `apart` no tile spans two ranges. A pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "esp/nn/parameter.h"
#include "esp/optim/optimizer.h"

namespace esp::sync {

struct TilePlan {
  // Elements with the same weight decay flag. Elements between parameters belong to no segment and are not updated.
  struct Run {
    int64_t begin = 0, end = 0;
    bool updated = true, decay = false;
  };
  // The part of one owned range in one tile.
  struct Segment {
    int64_t begin = 0, end = 0;
    size_t range = 0;
    int64_t first = 0;  // first element within the range
  };
  struct Tile {
    int64_t begin = 0, end = 0;
    std::vector<Run> runs;
    std::vector<Segment> segments;
    int64_t count() const { return end - begin; }
  };

  int64_t count = 0;            // elements
  std::vector<int64_t> begins;  // of each range
  std::vector<Tile> tiles;
  int64_t largest = 0;  // elements of the largest tile
};

TilePlan plan_tiles(const nn::ParameterList& parameters, std::span<const optim::OptimizerShard> owned, int64_t tile,
                    bool apart = false);

}  // namespace esp::sync
