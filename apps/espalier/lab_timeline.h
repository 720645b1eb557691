// Pipelines as pictures: a row per stage, a box per action, gaps where the stage waits.
#pragma once

#include <string>
#include <vector>

#include "esp/parallel/pp/simulate.h"

namespace esp::app {

struct TimelinePicture {
  std::string title;  // above its rows
  parallel::Timeline timeline;
  int num_chunks = 1;
  double unit = 1;  // what one unit of time is in the timeline's own: rows of several pictures are then to one scale
};

// `columns` is what the makespan takes. A box is the micro-batch and a shade: ░ forward, ▓ backward, · weight
// gradients.
std::string timeline_text(const TimelinePicture& picture, int columns);
std::string timeline_key();  // what the shades mean

std::string timelines_svg(const std::string& title, const std::vector<TimelinePicture>& pictures);

}  // namespace esp::app
