// Pictures of pipelines: one row per stage, one box per action, and a gap where the stage is idle.
#pragma once

#include <string>
#include <vector>

#include "esp/parallel/pp/simulate.h"

namespace esp::app {

struct TimelinePicture {
  std::string title;  // printed above the rows
  parallel::Timeline timeline;
  int num_chunks = 1;
  double unit = 1;  // duration of one unit, in the timeline's unit of time; gives several pictures the same scale
};

// `columns` is the width of the whole timeline. A box shows the number of its micro-batch and a shade: ░ forward, ▓
// backward, · weight gradients.
std::string timeline_text(const TimelinePicture& picture, int columns);
std::string timeline_key();  // legend of the shades

std::string timelines_svg(const std::string& title, const std::vector<TimelinePicture>& pictures);

}  // namespace esp::app
