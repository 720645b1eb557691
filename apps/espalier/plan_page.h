// A page of a plan: one file, nothing loaded from elsewhere, light or dark as the reader's machine is. Sections are
// heads with text and pictures; subcommands put theirs together.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/estimate.h"

namespace esp::app {

struct PageSection {
  std::string head, body;  // body: HTML
};
std::string html_page(const std::string& title, const std::vector<PageSection>& sections);
std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows);
std::string html_list(const std::vector<std::string>& lines);

// Pictures, as SVG. Memory of every stage by category against what the processor has; a step's time by part; a trace of
// the simulator with a row per device (empty where it would be too large to look at).
std::string memory_picture(const std::vector<plan::Memory>& stages, double room_bytes);
std::string time_picture(const plan::Estimate& estimate);
std::string timeline_picture(const Json& trace);

// Points of a search: step time against memory of one processor, the front and the winner marked.
struct LandscapePoint {
  double time_s = 0, memory_bytes = 0;
  std::string label;
  bool front = false, best = false;
};
std::string landscape_picture(const std::vector<LandscapePoint>& points, double room_bytes);

}  // namespace esp::app
