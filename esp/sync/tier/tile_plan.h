// The elements an optimizer owns, laid end to end and cut into tiles: what is updated, copied and streamed at once.
//
// Element numbers here count over all owned ranges in their order. A tile may begin and end inside a range and hold
// many: small ranges do not make small transfers. Unless `apart`: then no tile holds elements of two. A pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "esp/nn/parameter.h"
#include "esp/optim/optimizer.h"

namespace esp::sync {

struct TilePlan {
  // Over which weight decay applies, or not, throughout. Elements between parameters belong to none: not updated.
  struct Run {
    int64_t begin = 0, end = 0;
    bool updated = true, decay = false;
  };
  // What of one owned range lies in one tile.
  struct Segment {
    int64_t begin = 0, end = 0;
    size_t range = 0;
    int64_t first = 0;  // element of the range
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

TilePlan plan_tiles(const nn::ParameterList& parameters, std::span<const optim::Owned> owned, int64_t tile,
                    bool apart = false);

}  // namespace esp::sync
