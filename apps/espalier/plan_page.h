// HTML page of a plan: one file that needs no others, for light and dark mode. A section is a heading with text and
// pictures.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/estimate.h"

namespace esp::app {

struct PageSection {
  std::string head, body;  // head is plain text, body is HTML
};
std::string html_page(const std::string& title, const std::vector<PageSection>& sections);
std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows);
std::string html_list(const std::vector<std::string>& lines);

// Pictures as SVG: the memory of every stage by category, compared with the capacity; the parts of the step time; the
// simulator's trace with one row per device (empty if the trace is too large).
std::string memory_picture(const std::vector<plan::Memory>& stages, double room_bytes);
std::string time_picture(const plan::Estimate& estimate);
std::string timeline_picture(const Json& trace);

// One point of a search: step time, and memory of one device. `front` and `best` mark the Pareto front and the best
// policy.
struct LandscapePoint {
  double time_s = 0, memory_bytes = 0;
  std::string label;
  bool front = false, best = false;
};
std::string landscape_picture(const std::vector<LandscapePoint>& points, double room_bytes);

}  // namespace esp::app
