#include "apps/espalier/lab_timeline.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "apps/espalier/lab_svg.h"

namespace esp::app {
namespace {

constexpr const char* kShadeOfKind[] = {"░", "▓", "·"};  // indexed by ActionKind
constexpr const char* kKinds[] = {"forward", "backward", "weight gradients"};

std::string row_text(const parallel::StageTimeline& stage, double per_column) {
  const auto column = [&](double time) { return static_cast<size_t>(std::lround(time / per_column)); };
  std::vector<std::string> cells;
  for (const parallel::TimedAction& timed : stage.actions) {
    cells.resize(std::max(cells.size(), column(timed.begin)), " ");
    const size_t end = column(timed.end);
    for (const char c : std::to_string(timed.action.micro_batch))
      if (cells.size() < end) cells.emplace_back(1, c);
    while (cells.size() < end) cells.emplace_back(kShadeOfKind[static_cast<size_t>(timed.action.kind)]);
  }
  std::string text;
  for (const std::string& cell : cells) text += cell;
  return text;
}

std::string box_svg(const parallel::TimedAction& timed, const TimelinePicture& picture, double left, double y,
                    double height, double pixels) {
  const double x = left + timed.begin * pixels, width = (timed.end - timed.begin) * pixels;
  // Later chunks are paler, so that the chunks of a stage can be distinguished.
  const double opacity = 1 - 0.45 * timed.action.chunk / std::max(1, picture.num_chunks);
  std::string svg = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\" fill-opacity=\"{:.2f}\" "
      "stroke=\"#8888\" stroke-width=\"0.5\"><title>{}</title></rect>\n",
      x, y, width, height, svg_colour(static_cast<size_t>(timed.action.kind)), opacity,
      parallel::name_of(timed.action, picture.num_chunks));
  const std::string label = std::to_string(timed.action.micro_batch);
  if (width > 6 * static_cast<double>(label.size()))
    svg += svg_text(x + width / 2, y + height * 0.72, "middle", label, "style=\"font-size:9px;fill:#fff\"");
  return svg;
}

}  // namespace

std::string timeline_text(const TimelinePicture& picture, int columns) {
  const double makespan = picture.timeline.makespan;
  std::string text = picture.title + "\n";
  for (size_t stage = 0; stage < picture.timeline.stages.size(); ++stage)
    text += fmt::format("  stage {:<2}|{}\n", stage,
                        row_text(picture.timeline.stages[stage], makespan > 0 ? makespan / columns : 1));
  return text;
}

std::string timeline_key() {
  std::string text = " ";
  for (size_t kind = 0; kind < std::size(kKinds); ++kind)
    text += fmt::format(" {} {} ", kShadeOfKind[kind], kKinds[kind]);
  return text + " digits: the micro-batch\n";
}

std::string timelines_svg(const std::string& title, const std::vector<TimelinePicture>& pictures) {
  constexpr double kWidth = 1200, kLeft = 80, kRight = 30, kTop = 84, kRow = 18, kBox = 15, kHead = 26;
  // A picture of more than twice the length of the shortest one is cut at the edge, because it would compress all
  // others.
  double longest = 0, shortest = 1e300, height = kTop;
  for (const TimelinePicture& picture : pictures)
    shortest = std::min(shortest, picture.timeline.makespan / picture.unit);
  for (const TimelinePicture& picture : pictures) {
    const double units = picture.timeline.makespan / picture.unit;
    if (units <= 2 * shortest) longest = std::max(longest, units);
    height += kHead + kRow * static_cast<double>(picture.timeline.stages.size()) + 10;
  }
  std::string svg = svg_open(kWidth, height + 10);
  svg += svg_text(20, 28, "start", title, "font-weight=\"bold\"");
  double x = 20;
  for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"46\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x, svg_colour(kind));
    svg += svg_text(x + 18, 57, "start", kKinds[kind]);
    x += 50 + 8 * static_cast<double>(std::string_view(kKinds[kind]).size());
  }
  double y = kTop;
  for (const TimelinePicture& picture : pictures) {
    const double pixels = (kWidth - kLeft - kRight) / (std::max(longest, 1e-9) * picture.unit);
    svg += svg_text(20, y + 14, "start", picture.title);
    y += kHead;
    for (size_t stage = 0; stage < picture.timeline.stages.size(); ++stage, y += kRow) {
      svg += svg_text(kLeft - 8, y + kBox * 0.8, "end", fmt::format("stage {}", stage), "style=\"font-size:11px\"");
      for (const parallel::TimedAction& timed : picture.timeline.stages[stage].actions)
        if (kLeft + timed.end * pixels <= kWidth - kRight + 1) svg += box_svg(timed, picture, kLeft, y, kBox, pixels);
      if (picture.timeline.makespan / picture.unit > longest * 1.001)
        svg += svg_text(kWidth - kRight + 6, y + kBox * 0.8, "start", "…");
    }
    y += 10;
  }
  return svg + "</svg>\n";
}

}  // namespace esp::app
