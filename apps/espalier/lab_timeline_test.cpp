#include "apps/espalier/lab_timeline.h"

#include <gtest/gtest.h>

namespace esp::app {
namespace {

TimelinePicture two_stages() {
  const parallel::PipelineSchedule schedule = parallel::make_schedule("1f1b", {2, 1, 2});
  return {"1f1b & more", parallel::simulate(schedule, parallel::equal_costs(schedule.shape, {1, 1, 1})), 1, 1};
}

TEST(TimelinePicture, DrawsBoxesToScale) {
  EXPECT_EQ(timeline_text(two_stages(), 18),
            "1f1b & more\n"
            "  stage 0 |0░1░    0▓▓▓  1▓▓▓\n"
            "  stage 1 |  0░0▓▓▓1░1▓▓▓\n");
}

TEST(TimelinePicture, TruncatesLabelsInNarrowBoxes) {
  EXPECT_EQ(timeline_text(two_stages(), 9),
            "1f1b & more\n"
            "  stage 0 |01  0▓ 1▓\n"
            "  stage 1 | 00▓11▓\n");
}

TEST(TimelinePicture, DrawsTimelinesOfOneSvgToSameScale) {
  TimelinePicture slow = two_stages();
  for (auto& stage : slow.timeline.stages)
    for (auto& timed : stage.actions) timed.begin *= 5, timed.end *= 5;
  slow.timeline.makespan *= 5;
  slow.unit = 5;
  const std::string svg = timelines_svg("title", {two_stages(), slow});
  EXPECT_NE(svg.find("1f1b &amp; more"), std::string::npos);
  // In both timelines the first forward takes one ninth of the width.
  const std::string box = "width=\"121.11\"";
  const size_t first = svg.find(box);
  ASSERT_NE(first, std::string::npos) << svg;
  EXPECT_NE(svg.find(box, svg.find("1f1b &amp; more", first)), std::string::npos);
}

}  // namespace
}  // namespace esp::app
