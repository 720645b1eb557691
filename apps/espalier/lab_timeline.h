// Pictures of pipelines: a row per stage, a box per action, gaps where the stage is idle.
#pragma once

#include <string>
#include <vector>

#include "esp/parallel/pp/simulate.h"

namespace esp::app {

struct TimelinePicture {
  std::string title;  // above its rows
  parallel::Timeline timeline;
  int num_chunks = 1;
  double unit = 1;  // one unit of time in the timeline's unit: gives several pictures one scale
};

// `columns` is the width of the makespan. A box is the micro-batch and a shade: ░ forward, ▓ backward, · weight
// gradients.
std::string timeline_text(const TimelinePicture& picture, int columns);
std::string timeline_key();  // legend of the shades

std::string timelines_svg(const std::string& title, const std::vector<TimelinePicture>& pictures);

}  // namespace esp::app
