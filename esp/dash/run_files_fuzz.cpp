// Lines of a log and traces that are not what we wrote: read or refused, and what is answered is JSON.
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/dash/plain_text.h"
#include "esp/dash/series.h"
#include "esp/dash/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace esp::dash;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Series series;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    series.add_line(text.substr(at, end - at));
    at = end + 1;
  }
  for (const std::string& key : series.keys()) {
    (void)nlohmann::json::parse(series.picture(key, -1e300, 1e300, 3));
    (void)nlohmann::json::parse(json_quoted(key));
  }
  (void)series.pauses();
  (void)series.slowest();
  (void)nlohmann::json::parse(json_quoted(text));
  try {
    const Trace trace = parse_trace(text);
    (void)nlohmann::json::parse(window_of(trace, -1e300, 1e300, 60));
  } catch (const esp::IoError&) {
  }
  return 0;
}
